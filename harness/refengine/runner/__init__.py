"""Two model runners, V1 and V2, and the choice between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.refengine import envs
from harness.refengine.stage import ONLY_STAGE, Stage

if TYPE_CHECKING:
    from harness.refengine.config import EngineConfig
    from harness.refengine.device import Device

    from . import v1, v2

DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES = (
    "Lfm2ForCausalLM",
    "PromptTowerLlamaForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen3ForCausalLM",
)


def use_v2_model_runner(config: EngineConfig) -> bool:
    """VLLM_USE_V2_MODEL_RUNNER if set, else whether the architecture defaults to V2."""
    if envs.VLLM_USE_V2_MODEL_RUNNER is not None:
        return envs.VLLM_USE_V2_MODEL_RUNNER
    architecture = (config.hf_config.get("architectures") or [""])[0]
    return architecture in DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES


def create_model_runner(
    config: EngineConfig, device: Device, stage: Stage = ONLY_STAGE
) -> v1.GPUModelRunner | v2.GPUModelRunner:
    """Make the runner that environment and architecture choose."""
    if use_v2_model_runner(config):
        from .v2 import GPUModelRunner as V2GPUModelRunner

        return V2GPUModelRunner(config, device, stage)
    from .v1 import GPUModelRunner as V1GPUModelRunner

    return V1GPUModelRunner(config, device, stage)
