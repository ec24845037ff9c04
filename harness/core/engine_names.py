"""Names of engines that several folders must agree on."""

from __future__ import annotations

EMULATION = "vllm-cpu-emulation"
"""vLLM's own offloaders on CPU tensors; the name is the label of emulation in every output."""
VLLM = ("vllm", EMULATION)
"""Engines that are vLLM."""
