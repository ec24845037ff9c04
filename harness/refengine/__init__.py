"""A small, readable Llama-family engine with vLLM's names; imports nothing else of harness."""

from __future__ import annotations

__version__ = "0.1.0"

from .config import ConfigError, EngineConfig, OffloadConfig, UnsupportedSettingError
from .core_process import EngineCoreError, EngineDeadError
from .device import OutOfDeviceMemoryError
from .lifecycle import ForwardError
from .llm import LLM, RequestOutput
from .sampling_params import SamplingParams
from .scheduler import Logprobs

__all__ = [
    "LLM",
    "ConfigError",
    "EngineConfig",
    "EngineCoreError",
    "EngineDeadError",
    "ForwardError",
    "Logprobs",
    "OffloadConfig",
    "OutOfDeviceMemoryError",
    "RequestOutput",
    "SamplingParams",
    "UnsupportedSettingError",
]
