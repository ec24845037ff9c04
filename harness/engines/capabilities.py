"""What each engine cannot do, said without importing it; `plan/capability.py` reads it."""

from __future__ import annotations

from harness.core import Json

REFERENCE: dict[str, Json] = {
    "runners": ("v1", "v2"),
    "backends": ("uva", "prefetch"),
    "architectures": ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"),
    "dtypes": ("auto", "float32", "bfloat16", "float16"),
    "graphs": "recorded graphs are not in this engine yet",
}
"""The reference engine's statement."""
