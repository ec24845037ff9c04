"""What is asked of an engine: a model, prompts as token ids, sampling parameters and steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .codec import Json
from .errors import SettingError

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model by name, and where its checkpoint is had."""

    name: str
    """The name every output uses."""
    architecture: str
    """Hugging Face architecture, e.g. `LlamaForCausalLM`."""
    config: Mapping[str, Json]
    """The checkpoint's config.json content: hidden_size, num_hidden_layers and so on."""
    dtype: Dtype = "float32"
    """Dtype the engine computes in."""
    source: Literal["seeded", "shipped", "local", "hub"] = "local"
    path: str
    """Folder with config.json and *.safetensors, or a hub id when source is `hub`."""
    seed: int = 0
    """Seed of a seeded checkpoint."""
    stand_in_for: str | None = None
    """The name that was asked for, when this model only stands in for it."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return int(self.config["num_hidden_layers"])

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self.config["vocab_size"])

    @property
    def display_name(self) -> str:
        """The name, and whose stand-in it is."""
        return f"{self.name} (stand-in for {self.stand_in_for})" if self.stand_in_for else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """vLLM's names; temperature 0 is greedy."""

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = 5
    """How many top log-probabilities to keep per position; None keeps none."""
    ignore_eos: bool = True


STEP_KINDS = (
    "generate",
    "reload_weights",
    "apply_sparse_weight_patches",
    "sleep",
    "wake_up",
    "fail_forward",
    "abort_request",
    "engine_before",
    "engine_beside",
    "end_beside",
)
"""Every kind of step, whatever an engine supports of them."""
OTHER_ENGINE = ("engine_before", "engine_beside", "end_beside")
"""Steps about another engine of the same process; any engine that can be started has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a workload, and what it is given.

    - `generate`: answer all prompts.
    - `reload_weights`: `path` of a checkpoint of the same shapes.
    - `apply_sparse_weight_patches`: `seed`, `num_values` of each of `params`.
    - `sleep`: `level` 1 (weights go to host memory) or 2 (they are discarded).
    - `wake_up`: `tags`, of `weights` and `kv_cache`; None wakes all.
    - `fail_forward`: the next forward raises in decoder layer `layer`, then the engine goes on.
    - `abort_request`: the first request is aborted while its last step runs.
    - `engine_before`: `offload` fields of an engine that runs and ends before this one starts.
    - `engine_beside`: the same for one that answers while this one lives, until `end_beside`.
    """

    kind: str = "generate"
    args: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in STEP_KINDS:
            raise SettingError(f"step kind={self.kind!r} must be one of {', '.join(STEP_KINDS)}")

    @property
    def name(self) -> str:
        """The kind, and what tells it from others of its kind: `sleep 2`, `reload_weights same`."""
        shown = self.args.get("level") or self.args.get("label")
        return f"{self.kind} {shown}" if shown else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts and steps for one model."""

    name: str
    model: ModelSpec
    prompt_token_ids: tuple[tuple[int, ...], ...]
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    steps: tuple[Step, ...] = (Step(),)
    seed: int = 0

    def __post_init__(self) -> None:
        assert self.prompt_token_ids, "a workload needs at least one prompt"
        assert any(s.kind == "generate" for s in self.steps), "a workload needs a generate step"

        assert self.steps[-1].kind == "generate", "a workload ends with what it proves: generate"

    @property
    def is_lifecycle(self) -> bool:
        """Whether there is more to it than one generate."""
        return len(self.steps) > 1
