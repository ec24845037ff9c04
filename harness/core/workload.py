"""What is asked of an engine: a model, prompts as token ids, sampling parameters and steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .codec import Json

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a workload; `kind` is `generate` or a lifecycle event."""

    kind: str = "generate"
    args: Mapping[str, Json] = field(default_factory=dict)


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
