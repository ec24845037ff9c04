"""Modules that hold weights and do not compute: a layer launches work with what they hold."""

from __future__ import annotations

import torch
from torch import nn

from harness.refengine.config import UnsupportedSettingError, check
from harness.refengine.device import Device
from harness.refengine.layers import CODES_PER_WORD, Operand, PackedWeight

SHAPE_DIMS = 2


class Weight(nn.Module):
    """A module that only holds `weight`; the layer above computes with it."""

    full_name = ""
    """Of this module in the whole model."""

    def __init__(self, device: Device, dtype: torch.dtype, *dims: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(device.empty(dims, dtype), requires_grad=False)

    @property
    def now(self) -> torch.Tensor:
        """The bytes `weight` stands for now, with its name: a launch keeps them if it moves on."""
        return named(self.weight.data, f"{self.full_name}.weight")


class PackedLinear(nn.Module):
    """A linear weight of int8 codes; loading leaves it transposed, and deletes `weight_shape`.

    As loaded, in the checkpoint's form: `weight_packed` int32 `[out, in / 4]`, `weight_scale`
    `[out, 1]`, `weight_shape` int64 `[2 * parts]`. To compute: `weight_packed` int32
    `[in, out / 4]` and `weight_scale` `[out]`.

    Args:
        device: where parameters are allocated.
        dtype: of the scales.
        out: output channels.
        inputs: input channels.
        parts: how many of the checkpoint's weights are fused in it, one below the other.

    Raises:
        UnsupportedSettingError: the sizes do not pack four codes to a word.
    """

    full_name = ""
    """Of this module in the whole model."""

    def __init__(
        self, device: Device, dtype: torch.dtype, out: int, inputs: int, *, parts: int
    ) -> None:
        super().__init__()
        if out % CODES_PER_WORD or inputs % CODES_PER_WORD:
            raise UnsupportedSettingError(
                f"packed weight of {out} x {inputs}: both must be multiples of {CODES_PER_WORD}"
            )
        self.device, self.dtype, self.out, self.inputs = device, dtype, out, inputs
        self.num_parts = parts
        for name, (dims, kind) in self.loaded_form().items():
            param = nn.Parameter(device.empty(dims, kind), requires_grad=False)
            self.register_parameter(name, param)

    @property
    def now(self) -> PackedWeight:
        """What its parameters stand for now, with their names."""
        return PackedWeight(
            *(
                named(getattr(self, name).data, f"{self.full_name}.{name}")
                for name in PackedWeight._fields
            )
        )

    def loaded_form(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each parameter as a checkpoint fills it."""
        return {
            "weight_packed": ((self.out, self.inputs // CODES_PER_WORD), torch.int32),
            "weight_scale": ((self.out, 1), self.dtype),
            "weight_shape": ((SHAPE_DIMS * self.num_parts,), torch.int64),
        }

    def transform(self, loaded: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What to compute with, from what a checkpoint held; new tensors, not yet anybody's.

        Raises:
            ConfigError: `weight_shape` is not that of the codes.
        """
        rows, columns = loaded["weight_shape"].view(-1, SHAPE_DIMS).T.tolist()
        check(
            sum(rows) == self.out and set(columns) == {self.inputs},
            f"{self.full_name}.weight_shape says {rows} x {columns}, "
            f"the codes are {self.out} x {self.inputs}",
        )
        codes = loaded["weight_packed"].view(torch.uint8)
        return {
            "weight_packed": codes.T.contiguous().view(torch.int32),
            "weight_scale": loaded["weight_scale"].flatten(),
        }

    def process_weights_after_loading(self) -> None:
        """Replace each Parameter by one to compute with, and delete what only loading needed."""
        loaded = {name: param.data for name, param in self.named_parameters()}
        for name, tensor in self.transform(loaded).items():
            param = nn.Parameter(self.device.to(tensor, "device"), requires_grad=False)
            self.register_parameter(name, param)
        del self.weight_shape


class NoMemory:
    """Stands for a device where only shapes matter: what it gives holds no bytes."""

    @staticmethod
    def empty(dims: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor without storage."""
        return torch.empty(dims, dtype=dtype, device="meta")


def operands(*weights: Operand) -> tuple[torch.Tensor, ...]:
    """Every tensor that these weights are made of, as a launch declares what it reads."""
    parts = (w if isinstance(w, PackedWeight) else (w,) for w in weights)
    return tuple(tensor for part in parts for tensor in part)


def named(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Write on a tensor object which of the model's tensors it stands for, for observers."""
    tensor.param_name = name  # type: ignore[attr-defined]
    return tensor
