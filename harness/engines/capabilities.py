"""What each engine cannot do, said without importing it; `plan/capability.py` reads it."""

from __future__ import annotations

from harness.core import Json

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen3ForCausalLM",
    "Lfm2ForCausalLM",
)
"""What accelerate is tried with: architectures of transformers."""

REFERENCE: dict[str, Json] = {
    "runners": ("v1", "v2"),
    "backends": ("uva", "prefetch"),
    "architectures": (*ARCHITECTURES, "PromptTowerLlamaForCausalLM"),
    "dtypes": ("auto", "float32", "bfloat16", "float16"),
    "quantizations": ("pack-quantized",),
    "graphs": {"cuda": "graphs are recorded on device='simulated' only"},
    "server": "the embedded engine is no server",
}
"""The reference engine's statement."""

VLLM: dict[str, Json] = {
    "runners": ("v1", "v2"),
    "backends": ("uva", "prefetch"),
    "quantizations": ("pack-quantized",),
}
"""vLLM's, of any release: what one of them lacks is asked of the live engine."""

ACCELERATE: dict[str, Json] = {
    "runners": (),
    "backends": ("cpu_offload", "disk_offload", "device_map"),
    "architectures": ARCHITECTURES,
    "dtypes": ("auto", "float32", "bfloat16", "float16"),
    "quantizations": (),
    "multiprocessing": "accelerate has no engine core",
    "server": "accelerate is no server",
    "graphs": "accelerate's hooks run eagerly",
}
"""accelerate's."""
