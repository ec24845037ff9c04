"""Setting -> vLLM's engine arguments, and the variables every vLLM process gets."""

from __future__ import annotations

import json

from harness.core import Json, Setting, Workload, encode
from harness.engines.base import EXTENSION, model_length

ENV_SETTING = "HARNESS_SETTING"
"""Holds the setting as JSON, for the plugin in each process of the engine."""
ENV_DEFAULTS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else launches side by side share the first core
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
ENV_CUDA = {"VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn"}
CPU_CACHE_BYTES = 64 * 1024**2
CUDA_CACHE_BYTES = 1024**3
CUDA_SHARE = 0.05
"""Share of the device a launch plans with: several fit side by side, and none measures another."""


def engine_kwargs(setting: Setting, workload: Workload, *, is_cpu: bool) -> dict[str, Json]:
    """Keyword arguments for `LLM(...)`: the harness's defaults, then what the setting says.

    The KV cache has a fixed size, since a launch that measured free memory would measure the
    launches beside it.
    """
    return {
        "model": workload.model.path,
        "dtype": workload.model.dtype,
        "max_model_len": model_length(workload),
        "max_num_seqs": max(8, len(workload.prompt_token_ids)),
        "seed": workload.seed,
        "skip_tokenizer_init": True,
        "kv_cache_memory_bytes": CPU_CACHE_BYTES if is_cpu else CUDA_CACHE_BYTES,
        **({} if is_cpu else {"gpu_memory_utilization": CUDA_SHARE}),
        "worker_extension_cls": EXTENSION,
        **setting.engine_kwargs(),
    }


def process_env(setting: Setting, *, is_cpu: bool) -> dict[str, str]:
    """Variables to set in the process that starts vLLM; its own children inherit them.

    On CUDA a core of its own is spawned: what the plugin imports here has asked the driver
    already, and a forked core could not ask again.
    """
    defaults = ENV_DEFAULTS if is_cpu else {**ENV_DEFAULTS, **ENV_CUDA}
    usual = {name: value for name, value in defaults.items() if name not in setting.env}
    return {**usual, ENV_SETTING: json.dumps(encode(setting))}
