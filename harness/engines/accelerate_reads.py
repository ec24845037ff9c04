"""Tells recorders which weights each module is about to compute with, once they are brought in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


READ_BY_PARENT = {"Lfm2ShortConv": {"conv": "out_proj"}}
"""Class -> its module whose weight it reads itself, and the module that is called right after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One module's compute, as observers take it."""

    site: str
    """The module's name."""
    reads: Sequence[torch.Tensor]
    """Its own parameters, each with its full name as `param_name`."""
    is_copy: bool = False


def watch_modules(model: nn.Module, ties: Mapping[str, str], observers: Sequence[Any]) -> None:
    """Tell `observers` from now on what every module that has parameters of its own reads.

    torch calls its hooks before accelerate brings the weights in, so where a hook of accelerate's
    is on a module its own code is wrapped instead. What a parent reads itself, without a call of
    the module, is looked at where the next module is called.

    Args:
        model: the live model.
        ties: name of a tied parameter -> the name it goes by.
        observers: recorders on the engine's device.
    """
    modules, before = dict(model.named_modules()), {}
    for name, module in modules.items():
        for child, following in READ_BY_PARENT.get(type(module).__name__, {}).items():
            before[f"{name}.{following}"] = f"{name}.{child}"
    for name, module in modules.items():
        if module._parameters:
            read = [each for each in (before.get(name), name) if each]
            tell = partial(_tell, {each: modules[each] for each in read}, ties, observers)
            owner: Any = module
            if hasattr(module, "_old_forward"):
                owner._old_forward = _after(tell, owner._old_forward)
            else:
                module.register_forward_pre_hook(_pre_hook(tell))


def _tell(
    modules: Mapping[str, nn.Module], ties: Mapping[str, str], observers: Sequence[Any]
) -> None:
    for site, module in modules.items():
        reads = []
        for name, param in module.named_parameters(recurse=False):
            tensor: Any = param.detach()
            full = f"{site}.{name}"
            tensor.param_name = ties.get(full, full)
            reads.append(tensor)
        work = Work(site=site, reads=reads)
        for observer in observers:
            observer.on_launch(work)
            observer.on_run(work)


def _after(tell: Callable[[], None], forward: Callable[..., Any]) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        tell()
        return forward(*args, **kwargs)

    return told


def _pre_hook(tell: Callable[[], None]) -> Callable[[nn.Module, Any], None]:
    def told(module: nn.Module, args: Any) -> None:
        del module, args
        tell()

    return told
