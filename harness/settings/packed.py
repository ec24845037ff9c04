"""Packed int8 checkpoints, in compressed-tensors' `pack-quantized` format. No torch.

Each linear weight of the decoder becomes three tensors: four 8-bit codes to an int32, a scale for
each output channel, and the shape it has unpacked. Embeddings, norms and `lm_head` stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from harness.core import Json

INT8 = "int8"
LINEAR = ("_proj.weight",)
"""Ends of the names of linear weights."""
CODES_PER_WORD = 4
ZERO_CODE = 128
"""Code of the value 0: codes are unsigned."""
MOST = 127
"""Magnitude of the largest value of a channel, in scales."""


def quantization_config() -> dict[str, Json]:
    """What config.json of such a checkpoint says of it."""
    weights: dict[str, Json] = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "channel",
        "dynamic": False,
    }
    group: dict[str, Json] = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def is_packed(config: Mapping[str, Json], name: str) -> bool:
    """Whether a model with this config.json holds the named weight packed."""
    return bool(config.get("quantization_config")) and name.endswith(LINEAR)


def pack(
    name: str, values: npt.NDArray[np.float32]
) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    """The tensors that one linear weight is stored as.

    Args:
        name: of the weight, ending in `.weight`.
        values: (out_features, in_features); in_features must be a multiple of four.

    Yields:
        `weight_packed` int32 (out_features, in_features / 4), `weight_scale` float32
        (out_features, 1) and `weight_shape` int64 (2,).
    """
    stem = name.removesuffix("weight")
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(MOST)
    codes = (np.rint(values / scale) + ZERO_CODE).astype("<u1")
    yield f"{stem}weight_packed", codes.view("<i4")
    yield f"{stem}weight_scale", scale
    yield f"{stem}weight_shape", np.array(values.shape, dtype="<i8")
