"""What each engine cannot do, said without importing it; `plan/capability.py` reads it."""

from __future__ import annotations

from harness.core import Json

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen3ForCausalLM",
    "Lfm2ForCausalLM",
)
"""What the embedded engine implements, and accelerate is tried with."""

REFERENCE: dict[str, Json] = {
    "runners": ("v1", "v2"),
    "backends": ("uva", "prefetch"),
    "architectures": ARCHITECTURES,
    "dtypes": ("auto", "float32", "bfloat16", "float16"),
    "graphs": {"cuda": "graphs are recorded on device='simulated' only"},
    "server": "the embedded engine is no server",
}
"""The reference engine's statement."""

VLLM: dict[str, Json] = {
    "runners": ("v1", "v2"),
    "backends": ("uva", "prefetch"),
}
"""vLLM's, of any release: what one of them lacks is asked of the live engine."""

ACCELERATE: dict[str, Json] = {
    "runners": (),
    "backends": ("cpu_offload", "disk_offload", "device_map"),
    "architectures": ARCHITECTURES,
    "dtypes": ("auto", "float32", "bfloat16", "float16"),
    "multiprocessing": "accelerate has no engine core",
    "server": "accelerate is no server",
    "graphs": "accelerate's hooks run eagerly",
}
"""accelerate's."""
