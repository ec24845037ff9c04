"""What every offloader answers to, the one in use, and how one is chosen; vLLM's names."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from harness.refengine import envs
from harness.refengine.device import get_current_device

if TYPE_CHECKING:
    import torch
    from torch import nn

GIB = 1024**3


class OffloadRequest(Protocol):
    """The fields of the engine's OffloadConfig that choose and shape an offloader."""

    @property
    def offload_backend(self) -> str:
        """`auto`, `uva` or `prefetch`."""
        ...

    @property
    def cpu_offload_gb(self) -> float:
        """UVA budget in GiB."""
        ...

    @property
    def cpu_offload_params(self) -> Iterable[str]:
        """UVA selectors."""
        ...

    @property
    def offload_group_size(self) -> int:
        """Prefetch: modules per group."""
        ...

    @property
    def offload_num_in_group(self) -> int:
        """Prefetch: modules offloaded of each group."""
        ...

    @property
    def offload_prefetch_step(self) -> int:
        """Prefetch: slots, and how far ahead."""
        ...

    @property
    def offload_params(self) -> Iterable[str]:
        """Prefetch selectors."""
        ...


class BaseOffloader(ABC):
    """Moves weights of a stack of modules off the device, and back for each computation."""

    supports_tower_offload = False
    """Modules outside the stack can be offloaded too; a ring is of one stack only."""

    @abstractmethod
    def wrap_modules(
        self, modules_generator: Iterable[nn.Module], prefix: str = ""
    ) -> list[nn.Module]:
        """Offload what is to be offloaded of each module as it is made, and return them all.

        Args:
            modules_generator: the stack, one module after the other, or a module beside it.
            prefix: of names, where they are to be matched by more than is relative to the module.
        """

    def wrap_tower(self, tower: nn.Module, name: str) -> None:
        """Offload a module that is not of the stack, if this offloader does that."""
        if self.supports_tower_offload:
            self.wrap_modules([tower], prefix=name)

    def post_init(self) -> None:  # noqa: B027 - most offloaders have nothing to finish
        """Finish after the weights are loaded."""

    def masters(self) -> dict[nn.Parameter, torch.Tensor]:
        """Bytes of record of each parameter whose own are a copy or a view of them."""
        return {}

    @contextmanager
    def device_loading_context(self, module: nn.Module) -> Iterator[None]:
        """Have a module's own parameters on the device, and offload what has become of them.

        Inside, a parameter may be replaced by another of its name, or deleted.
        """
        masters = self.masters()
        held = {n: masters[p] for n, p in module.named_parameters(recurse=False) if p in masters}
        for name, host_copy in held.items():
            module.get_parameter(name).data = get_current_device().to(host_copy, "device")
        yield
        for name, host_copy in held.items():
            self.replace(host_copy, module._parameters.get(name))

    def replace(self, host_copy: torch.Tensor, param: nn.Parameter | None) -> None:
        """Offload `param`, which is on the device, in the place of another; None: it was deleted.

        Args:
            host_copy: of the other, which is let go.
            param: its successor.
        """
        raise NotImplementedError(f"{type(self).__name__} holds no host copy")

    def refresh(self) -> None:  # noqa: B027 - only prefetch keeps copies on the device
        """Start over from the bytes of record: they were written, or a forward broke off."""

    def reserve_for_graphs(self) -> None:  # noqa: B027 - most need no memory for graphs
        """Allocate what a captured forward writes to; once, after `post_init`."""

    def sync_prev_onload(self) -> None:  # noqa: B027 - only prefetch copies ahead
        """Let the current stream wait for all copies so far, ahead of a capture or a replay."""

    def join_after_forward(self) -> None:  # noqa: B027 - only prefetch copies ahead
        """At the end of a captured forward, let the current stream wait for the copies in it."""

    def shutdown(self) -> None:  # noqa: B027 - an offloader without state has nothing to drop
        """Drop hooks, buffers and host copies; the modules cannot compute afterwards."""


class NoopOffloader(BaseOffloader):
    """Offloads nothing."""

    def wrap_modules(
        self, modules_generator: Iterable[nn.Module], prefix: str = ""
    ) -> list[nn.Module]:
        """Return the modules as they are."""
        del prefix
        return list(modules_generator)


_current: BaseOffloader = NoopOffloader()
_before: list[weakref.ref[BaseOffloader]] = []
"""Those of engines that started earlier and may live still, the latest last."""


def get_offloader() -> BaseOffloader:
    """Return the process's offloader; a `NoopOffloader` until one is set."""
    return _current


def set_offloader(offloader: BaseOffloader) -> None:
    """Make `offloader` the process's one; it must be set before the model is built."""
    global _current  # noqa: PLW0603 - vLLM's own arrangement: one offloader a process
    _before.append(weakref.ref(_current))
    _current = offloader


def drop_offloader(offloader: BaseOffloader) -> None:
    """Forget the offloader of an engine that ends; the process's one is that of one still alive."""
    global _current  # noqa: PLW0603 - vLLM's own arrangement: one offloader a process
    _before[:] = [ref for ref in _before if ref() not in (None, offloader)]
    if _current is offloader:
        _current = (_before.pop()() if _before else None) or NoopOffloader()


def create_offloader(offload_config: OffloadRequest) -> BaseOffloader:
    """Create the offloader that the configuration asks for.

    `auto` takes prefetch if a group size is set, else UVA if a budget is, else none.

    Raises:
        ValueError: The backend is unknown.
    """
    backend = offload_config.offload_backend
    if backend == "auto":
        if offload_config.offload_group_size > 0:
            backend = "prefetch"
        elif offload_config.cpu_offload_gb > 0:
            backend = "uva"
        else:
            return NoopOffloader()
    if backend == "prefetch":
        from .prefetch import PrefetchOffloader

        return PrefetchOffloader(
            group_size=offload_config.offload_group_size,
            num_in_group=offload_config.offload_num_in_group,
            prefetch_step=offload_config.offload_prefetch_step,
            offload_params=frozenset(offload_config.offload_params),
        )
    if backend != "uva":
        raise ValueError(f"offload_backend={backend!r} must be one of auto, uva, prefetch")
    from .uva import UVAOffloader

    return UVAOffloader(
        cpu_offload_max_bytes=int(offload_config.cpu_offload_gb * GIB),
        cpu_offload_params=frozenset(offload_config.cpu_offload_params),
    )


def should_pin_memory() -> bool:
    """Tell whether host copies go to pinned memory: the device can, and nobody forbade it."""
    return (
        get_current_device().pin_memory_available
        and not envs.VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY
    )


def is_selected(param_name: str, selectors: Iterable[str]) -> bool:
    """Tell whether a selector names whole dot-segments of `param_name`; no selector takes all.

    Args:
        param_name: Name relative to its module, such as `self_attn.q_proj.weight`.
        selectors: Such as `q_proj` or `mlp.down_proj.weight`.
    """
    selectors = tuple(selectors)
    return not selectors or any(f".{s}." in f".{param_name}." for s in selectors)
