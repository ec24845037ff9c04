"""Models by Hugging Face architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from harness.refengine.stage import ONLY_STAGE, Stage

from .lfm2 import Lfm2ForCausalLM
from .llama import CausalLM
from .shape import ARCHITECTURES, LFM2, ModelShape
from .weight import PackedLinear

if TYPE_CHECKING:
    from harness.refengine.config import EngineConfig
    from harness.refengine.device import Device

__all__ = ["ARCHITECTURES", "CausalLM", "ModelShape", "PackedLinear", "make_model"]


def make_model(config: EngineConfig, device: Device, stage: Stage = ONLY_STAGE) -> CausalLM:
    """One stage's part of a configuration's model, its parameters allocated and not yet filled.

    Raises:
        UnsupportedSettingError: the architecture is not implemented.
        OutOfDeviceMemoryError: the device cannot hold it.
    """
    dtype = getattr(torch, config.dtype)
    architecture = (config.hf_config.get("architectures") or [""])[0]
    model_class = Lfm2ForCausalLM if architecture == LFM2 else CausalLM
    return model_class(device, dtype, config.hf_config, config.model_len, stage)
