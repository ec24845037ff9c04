"""Setting -> the reference engine's arguments."""

from __future__ import annotations

from harness.core import Json, Setting, Workload

from .base import EXTENSION, model_length

DEFAULT_MAX_NUM_SEQS = 8


def engine_kwargs(setting: Setting, workload: Workload, *, num_threads: int) -> dict[str, Json]:
    """Keyword arguments for `LLM`: the harness's defaults, then what the setting says."""
    return {
        "dtype": workload.model.dtype,
        "max_model_len": model_length(workload),
        "max_num_seqs": DEFAULT_MAX_NUM_SEQS,
        "seed": workload.seed,
        "num_threads": num_threads,
        "worker_extension_cls": EXTENSION,
        **setting.engine_kwargs(),
    }
