"""Other weights for a live engine: a whole checkpoint, or some values of some parameters.

Writes the bytes of record, wherever an offloader keeps them, as work the device can see; then lets
the offloader bring what it holds on the device up to date. Derived tensors stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from .config import check
from .loader import load_checkpoint
from .models import CausalLM, PackedLinear
from .offloader import BaseOffloader

Patches = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""Parameter name -> (flat indices, int64; values)."""


def reload_weights(model: CausalLM, offloader: BaseOffloader, folder: Path) -> None:
    """Load every parameter anew from a checkpoint of the same shapes.

    Raises:
        ConfigError: the checkpoint does not fit the model, which then holds half of each.
    """
    device = model.device
    device.synchronize()  # copies of the old bytes may be under way
    masters = offloader.masters()
    records = {name: masters.get(p, p.data) for name, p in model.named_parameters()}
    staged = {n: m for n, m in model.named_modules() if isinstance(m, PackedLinear)}
    places = dict(records)
    for prefix, module in staged.items():
        for name, (dims, dtype) in module.loaded_form().items():
            places[f"{prefix}.{name}"] = torch.empty(dims, dtype=dtype)

    def write(destination: torch.Tensor, tensor: torch.Tensor, name: str) -> None:
        if name.rpartition(".")[0] in staged:
            destination.copy_(tensor)
            return
        site, writes = f"reload.{name}", (destination,)
        device.launch(
            torch.Tensor.copy_, destination, tensor, writes=writes, site=site
        ).result()  # one tensor in host memory at a time

    load_checkpoint(model, folder, places, write)
    for prefix in list(staged):
        module, names = staged.pop(prefix), [n for n in places if n.rpartition(".")[0] == prefix]
        loaded = {name.rpartition(".")[2]: places[name] for name in names}
        for name, tensor in module.transform(loaded).items():
            write(records[f"{prefix}.{name}"], tensor, f"{prefix}.{name}")
    offloader.refresh()


def apply_patches(model: CausalLM, offloader: BaseOffloader, patches: Patches) -> None:
    """Overwrite values of parameters at flat indices.

    Raises:
        ConfigError: a name, index or length is wrong; nothing is written then.
    """
    params, whole, device = dict(model.named_parameters()), model.whole_shapes(), model.device
    for name, (places, values) in patches.items():
        is_known = name in whole and not name.endswith("weight_shape")  # which loading deletes
        check(is_known, f"patch of {name!r}: the model has no such parameter")
        check_patch(name, whole[name].numel(), places, values)
    device.synchronize()  # copies of the old bytes may be under way
    masters = offloader.masters()
    for name, (places, values) in patches.items():
        if name not in params:
            continue  # another stage holds it
        master = masters.get(params[name], params[name].data)
        device.launch(
            put_values, master, places, values, writes=(master,), site=f"patch.{name}"
        ).result()
    offloader.refresh()


def check_patch(name: str, num_elements: int, places: torch.Tensor, values: torch.Tensor) -> None:
    """Refuse a patch that does not fit its parameter.

    Raises:
        ConfigError: saying what does not.
    """
    given = f"patch of {name!r}"
    check(places.dtype == torch.int64, f"{given}: indices are {places.dtype}, must be int64")
    check(
        places.dim() == 1 and places.shape == values.shape,
        f"{given}: {list(places.shape)} indices for {list(values.shape)} values",
    )
    if places.numel():
        low, high = int(places.min()), int(places.max())
        check(
            low >= 0 and high < num_elements,
            f"{given}: indices {low}..{high} must be within 0..{num_elements - 1}",
        )


def put_values(master: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
    """Work: write values at flat indices, in logical order whatever the layout."""
    index = torch.unravel_index(places.to(master.device), master.shape)
    master[index] = values.to(master.device, master.dtype)
