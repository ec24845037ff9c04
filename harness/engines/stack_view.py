"""What views of engines with vLLM's names share: offloader attributes, and a decoder stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .base import InternalMovedError, OffloadedModule

if TYPE_CHECKING:
    import torch

REPORTED = {"UVAOffloader": "cpu_offload_bytes", "PrefetchOffloader": "total_offloaded_bytes"}
"""Class of an offloader -> the attribute that holds its own count of bytes."""


class StackView:
    """The part of an `EngineView` that asks vLLM's names; an engine's own view adds the rest."""

    slot_attribute: str
    """Of a module's offloader: its slot."""

    @property
    def offloader(self) -> object:
        """See `EngineView`."""
        raise NotImplementedError

    def host_copies_of(self, item: object) -> Mapping[str, torch.Tensor]:
        """Parameter name -> bytes of record, of a module's offloader."""
        raise NotImplementedError

    @property
    def reported_offloaded_bytes(self) -> int:
        """See `EngineView`."""
        offloader = self.offloader
        name = REPORTED.get(type(offloader).__name__)
        return 0 if name is None else int(self._read(offloader, name))

    def offloaded_modules(self) -> Sequence[OffloadedModule]:
        """See `EngineView`."""
        offloader = self.offloader
        if type(offloader).__name__ != "PrefetchOffloader":
            return ()
        return tuple(
            OffloadedModule(
                module=self._read(item, "module"),
                slot_idx=self._read(item, self.slot_attribute),
                host_copies=self.host_copies_of(item),
            )
            for item in self._read(offloader, "module_offloaders")
        )

    def pool_slots(self) -> Sequence[Sequence[torch.Tensor]] | None:
        """See `EngineView`."""
        offloader = self.offloader
        if type(offloader).__name__ != "PrefetchOffloader":
            return None
        pool = self._read(offloader, "buffer_pool")
        if pool is None:
            return None
        rings = self._read(pool, "_buffers").values()
        return [[ring[slot] for ring in rings] for slot in range(self._read(pool, "slot_capacity"))]

    def layer_of(self, name: str) -> int | None:
        """See `EngineView`."""
        return decoder_layer(name)

    def _read(self, owner: Any, name: str) -> Any:
        try:
            return getattr(owner, name)
        except AttributeError:
            kind = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__name__
            raise InternalMovedError(f"{kind}.{name}") from None


def decoder_layer(name: str) -> int | None:
    """Decoder layer of `model.layers.N.…`, the Hugging Face name that every engine here keeps."""
    parts = name.split(".")
    is_layer = len(parts) > 2 and parts[:2] == ["model", "layers"] and parts[2].isdigit()
    return int(parts[2]) if is_layer else None
