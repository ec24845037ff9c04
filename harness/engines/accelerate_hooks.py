"""Reads accelerate's hooks: which tensors they hold, under which name, and where the bytes are.

Every attribute path inside accelerate stands here; what is not there raises `InternalMovedError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core import Space

from .base import InternalMovedError

if TYPE_CHECKING:
    import torch
    from torch import nn

HOOK = "AlignDevicesHook"
"""Class of the hook that moves a module's tensors in and out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadingHook:
    """A hook that keeps the tensors of one module, or of a whole block, elsewhere."""

    module_name: str
    module: nn.Module
    hook: Any
    is_recursive: bool
    """It holds the tensors of submodules too."""

    def names(self) -> Iterator[str]:
        """Full names of the parameters it holds."""
        prefix = f"{self.module_name}." if self.module_name else ""
        for name, _ in self.module.named_parameters(
            recurse=self.is_recursive, remove_duplicate=False
        ):
            yield prefix + name


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensor:
    """The bytes of record of one offloaded tensor."""

    key: str
    """Its name in the store."""
    store: Any
    """accelerate's mapping of names to tensors."""
    tensor: torch.Tensor | None
    """In memory; None when on disk."""
    entry: Mapping[str, Any] | None
    """Its entry in the index of what is on disk."""
    file: Path | None
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_checkpoint(self) -> bool:
        """Whether the file is the checkpoint itself, which nobody may write to."""
        return self.entry is not None and bool(self.entry.get("safetensors_file"))

    @property
    def space(self) -> Space:
        """Where the bytes are, asked of the tensor or the file."""
        if self.tensor is None:
            return "disk"
        return "host" if self.tensor.device.type == "cpu" else "device"

    def stand_in(self) -> torch.Tensor:
        """A tensor of the same size: over the very memory, or without bytes when on disk."""
        import torch

        if self.tensor is not None:
            return self.tensor.detach()
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


class TiedOnce:
    """A model whose tied parameters are listed once, by the name that comes first.

    Hooks give each name a placeholder of its own, so that torch no longer sees that they are one.
    A tied parameter is listed as offloaded only when all its names are.
    """

    def __init__(self, model: nn.Module, ties: Mapping[str, str]) -> None:
        self._model = model
        self._ties = ties

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As torch gives them before any hook is on the model."""
        named = dict(self._model.named_parameters(remove_duplicate=False))
        for name, param in named.items():
            others = [named[tied] for tied, first in self._ties.items() if first == name]
            if name not in self._ties:
                resident = (each for each in (param, *others) if each.device.type != "meta")
                yield name, next(resident, param)


def align_hooks(module: nn.Module) -> list[Any]:
    """Hooks of the one kind on a module itself."""
    hook = getattr(module, "_hf_hook", None)
    found = getattr(hook, "hooks", (hook,))
    return [each for each in found if type(each).__name__ == HOOK]


def offloading_hooks(model: nn.Module) -> list[OffloadingHook]:
    """Every hook that offloads, in the order of the modules."""
    return [
        OffloadingHook(
            module_name=name,
            module=module,
            hook=hook,
            is_recursive=bool(read(hook, "place_submodules")),
        )
        for name, module in model.named_modules()
        for hook in align_hooks(module)
        if read(hook, "offload")
    ]


def held_tensors(model: nn.Module) -> dict[str, HeldTensor]:
    """Full parameter name -> what its hook holds, for every parameter that a hook offloads."""
    params = dict(model.named_parameters(remove_duplicate=False))
    return {
        name: find_held(holder, name, params[name])
        for holder in offloading_hooks(model)
        for name in holder.names()
    }


def find_held(holder: OffloadingHook, name: str, param: torch.Tensor) -> HeldTensor:
    """What a hook holds of one parameter.

    Args:
        holder: the hook.
        name: the parameter's full name.
        param: the live parameter, for its shape and dtype.

    Raises:
        InternalMovedError: the hook's map does not lead to any bytes.
    """
    relative = name.removeprefix(f"{holder.module_name}." if holder.module_name else "")
    store = read(holder.hook, "weights_map")
    key = relative
    if hasattr(store, "dataset"):
        store, key = store.dataset, f"{read(store, 'prefix')}{relative}"
    tensors = getattr(store, "state_dict", store)
    if key in tensors:
        tensor = tensors[key]
        return HeldTensor(key=key, store=store, tensor=tensor, entry=None, file=None,
                          shape=tuple(tensor.shape), dtype=tensor.dtype)  # fmt: skip
    index = getattr(store, "index", {})
    if key not in index:
        raise InternalMovedError(f"{HOOK}.weights_map[{key!r}]")
    return _on_disk(store, key, index[key], param)


def _on_disk(store: Any, key: str, entry: Mapping[str, Any], param: torch.Tensor) -> HeldTensor:
    import torch

    path = entry.get("safetensors_file")
    file = Path(path or Path(str(read(store, "save_folder"))) / f"{key}.dat")
    held = HeldTensor(
        key=key,
        store=store,
        tensor=None,
        entry=entry,
        file=file,
        shape=tuple(entry.get("shape", param.shape)),
        dtype=getattr(torch, str(entry["dtype"])) if "dtype" in entry else param.dtype,
    )
    if not file.is_file():
        raise InternalMovedError(f"file {file.name} of {key}")
    if not path and file.stat().st_size != held.num_bytes:
        raise InternalMovedError(
            f"file {file.name} with {held.num_bytes} bytes (it has {file.stat().st_size})"
        )
    return held


def claim(held: HeldTensor, folder: Path) -> torch.Tensor:
    """The bytes that the engine will compute from, writable: memory, or the file mapped.

    What is read from the checkpoint itself is first copied into `folder`, and the engine's index
    is turned to that copy: the checkpoint is never written to.
    """
    import numpy as np
    import torch

    if held.tensor is not None:
        return held.tensor.detach()
    assert held.file is not None, "a held tensor is in memory or in a file"
    path = held.file
    if held.is_checkpoint:
        content = held.store[held.key].to("cpu").contiguous()
        path = folder / f"{held.key}.dat"
        path.write_bytes(content.view(torch.uint8).numpy().tobytes())
        held.store.save_folder = str(folder)
        name = str(held.dtype).removeprefix("torch.")
        held.store.index[held.key] = {"dtype": name, "shape": list(held.shape)}
    raw = np.memmap(path, dtype=np.uint8, mode="r+")
    return torch.from_numpy(raw).view(held.dtype).view(held.shape)


def read(owner: Any, name: str) -> Any:
    """An attribute of one of accelerate's objects.

    Raises:
        InternalMovedError: there is none of this name.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        raise InternalMovedError(f"{type(owner).__name__}.{name}") from None
