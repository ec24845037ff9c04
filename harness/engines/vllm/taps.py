"""Taps: what vLLM's prefetch offloader copies, waits for and reads, led through the device.

Put in place before an engine is built, in each of its processes. The refill note is always there;
the rest only where a recorder, poison or a delay was asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .device import LiveDevice, plain_copy
from .modules import VllmModules
from .patching import do_after, find_method

REFILLS: dict[int, list[int]] = {}
"""Index of an offloaded module -> indices whose copy was started after it ran, as seen."""
_last: list[int] = []
_noted: list[object] = []
"""The offloader whose refills are noted."""
_MARK = "_is_harness_tap"
"""On what has been put in a method's place, so that a second engine's taps are not put on it."""


def note_refills(modules: VllmModules) -> None:
    """Note whose copy really starts after which module ran."""
    owner: Any = modules.module("offloader.prefetch")
    wait = find_method(owner.PrefetchOffloader, "_wait_for_layer")
    start = find_method(owner._ModuleOffloader, "start_onload_to_static")
    if getattr(wait, _MARK, False):
        return

    def wait_for_layer(self: Any, layer_idx: int) -> Any:
        if not _noted or _noted[0] is not self:  # another engine's: what was seen is past
            _noted[:] = [self]
            REFILLS.clear()
        _last[:] = [layer_idx]
        return wait(self, layer_idx)

    def start_onload(self: Any) -> Any:
        if _last:
            seen = REFILLS.setdefault(_last[0], [])
            if self.layer_idx not in seen:
                seen.append(self.layer_idx)
        return start(self)

    setattr(wait_for_layer, _MARK, True)
    owner.PrefetchOffloader._wait_for_layer = wait_for_layer
    owner._ModuleOffloader.start_onload_to_static = start_onload


def tap_copies(modules: VllmModules, device: LiveDevice) -> None:
    """Lead each copy into a slot through the device: poison, delays and recorders sit there."""
    owner: Any = modules.module("offloader.prefetch")._ModuleOffloader
    plain = find_method(owner, "start_onload_to_static")
    if getattr(plain, _MARK, "") == "copies":
        return

    def start_onload(self: Any) -> Any:
        if device.name == "cuda":
            device.stream_of(self.copy_stream, name="copy")

        def copy_(dst: torch.Tensor, src: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            if not isinstance(src, torch.Tensor):
                return plain_copy(dst, src, *args, **kwargs)
            device.adopt(dst)
            device.copy_async(dst, src, site=f"prefetch of module {self.layer_idx}")
            return dst

        tensor_class: Any = torch.Tensor
        tensor_class.copy_ = copy_
        try:
            return plain(self)
        finally:
            tensor_class.copy_ = plain_copy

    setattr(start_onload, _MARK, "copies")
    owner.start_onload_to_static = start_onload


def tap_streams(device: LiveDevice) -> None:
    """Tell the device of every event recorded and waited for, and of the host's own waits."""
    if getattr(torch.cuda.Event.record, _MARK, False):
        return
    event: Any = torch.cuda.Event
    stream: Any = torch.cuda.Stream
    cuda: Any = torch.cuda
    taps = (
        (event, "record", lambda self, stream=None: device.on_record(self, stream)),
        (event, "wait", lambda self, stream=None: device.on_wait(self, stream)),
        (event, "synchronize", device.on_host_wait),
        (stream, "synchronize", lambda self: device.on_host_wait(device.stream_of(self))),
        (cuda, "synchronize", lambda *_, **__: device.on_host_wait(None)),
    )
    for owner, name, tell in taps:
        setattr(do_after(owner, name, tell), _MARK, True)


def watch_reads(model: nn.Module, device: LiveDevice) -> None:
    """Before each module with parameters of its own computes, tell the device what it reads.

    The output matrix is handed to the module that computes logits, and never called itself.
    """
    names = {id(module): name for name, module in model.named_modules()}

    def tell(module: nn.Module, args: tuple[Any, ...]) -> None:
        for each in (module, *args):
            if isinstance(each, nn.Module) and each._parameters:
                name = names.get(id(each), type(each).__name__)
                device.read(_own_parameters(name, each), site=name)

    for module in model.modules():
        if module._parameters or type(module).__name__ == "LogitsProcessor":
            module.register_forward_pre_hook(tell)


def _own_parameters(name: str, module: nn.Module) -> list[torch.Tensor]:
    """Where a module's parameters are now, each with its full name on it."""
    tensors = []
    for param_name, param in module._parameters.items():
        if param is not None:
            tensor = param.data
            tensor.param_name = f"{name}.{param_name}"  # type: ignore[attr-defined]
            tensors.append(tensor)
    return tensors
