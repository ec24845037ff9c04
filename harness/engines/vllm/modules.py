"""vLLM's modules by role: with view.py and taps.py all that knows where things are inside it."""

from __future__ import annotations

import importlib
from types import ModuleType

from harness.engines.base import InternalMovedError

PATHS = {
    "engine_core": "harness.engines.vllm.device",
    "layers.utils": "vllm.model_executor.layers.utils",
    "offloader": "vllm.model_executor.offloader",
    "offloader.base": "vllm.model_executor.offloader.base",
    "offloader.prefetch": "vllm.model_executor.offloader.prefetch",
    "offloader.uva": "vllm.model_executor.offloader.uva",
    "runner.cpu_v1": "vllm.v1.worker.cpu_model_runner",
    "runner.v1": "vllm.v1.worker.gpu_model_runner",
    "runner.v2": "vllm.v1.worker.gpu.model_runner",
}
"""Role -> module. Recorders are put on the device where `engine_core` makes it."""


class VllmModules:
    """See `EngineModules`."""

    def module(self, role: str) -> ModuleType:
        """See `EngineModules.module`."""
        path = PATHS.get(role, f"vllm.{role}")
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            raise InternalMovedError(f"{path} ({error})") from None
