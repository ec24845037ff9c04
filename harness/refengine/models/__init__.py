"""Models by Hugging Face architecture."""

from .llama import ARCHITECTURES, CausalLM, ModelShape

__all__ = ["ARCHITECTURES", "CausalLM", "ModelShape"]
