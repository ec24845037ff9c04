"""Setting -> the reference engine's arguments."""

from __future__ import annotations

from harness.core import Json, Setting, Workload

EXTENSION = "harness.observe.extension.ProbeExtension"
DEFAULT_MAX_NUM_SEQS = 8
LENGTH_MULTIPLE = 64


def engine_kwargs(setting: Setting, workload: Workload, *, num_threads: int) -> dict[str, Json]:
    """Keyword arguments for `LLM`: the harness's defaults, then what the setting says."""
    longest = max(len(prompt) for prompt in workload.prompt_token_ids)
    needed = longest + workload.sampling_params.max_tokens
    limit = int(workload.model.config.get("max_position_embeddings", needed))
    rounded = -(-needed // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return {
        "dtype": workload.model.dtype,
        "max_model_len": needed if rounded > limit else rounded,
        "max_num_seqs": DEFAULT_MAX_NUM_SEQS,
        "seed": workload.seed,
        "num_threads": num_threads,
        "worker_extension_cls": EXTENSION,
        **setting.engine_kwargs(),
    }
