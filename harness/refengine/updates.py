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
from .models import CausalLM
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

    def write(destination: torch.Tensor, tensor: torch.Tensor, name: str) -> None:
        site, writes = f"reload.{name}", (destination,)
        device.launch(
            torch.Tensor.copy_, destination, tensor, writes=writes, site=site
        ).result()  # one tensor in host memory at a time

    load_checkpoint(model, folder, masters=offloader.masters(), write=write)
    offloader.refresh()


def apply_patches(model: CausalLM, offloader: BaseOffloader, patches: Patches) -> None:
    """Overwrite values of parameters at flat indices.

    Raises:
        ConfigError: a name, index or length is wrong; nothing is written then.
    """
    params, whole, device = dict(model.named_parameters()), model.whole_shapes(), model.device
    for name, (places, values) in patches.items():
        check(name in whole, f"patch of {name!r}: the model has no such parameter")
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
