"""Models by Hugging Face architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .lfm2 import Lfm2ForCausalLM
from .llama import CausalLM
from .shape import ARCHITECTURES, LFM2, ModelShape

if TYPE_CHECKING:
    from harness.refengine.config import EngineConfig
    from harness.refengine.device import Device

__all__ = ["ARCHITECTURES", "CausalLM", "ModelShape", "make_model"]


def make_model(config: EngineConfig, device: Device) -> CausalLM:
    """The model of a configuration, its parameters allocated and not yet filled.

    Raises:
        UnsupportedSettingError: the architecture is not implemented.
        OutOfDeviceMemoryError: the device cannot hold it.
    """
    dtype = getattr(torch, config.dtype)
    architecture = (config.hf_config.get("architectures") or [""])[0]
    model_class = Lfm2ForCausalLM if architecture == LFM2 else CausalLM
    return model_class(device, dtype, config.hf_config, config.model_len)
