"""One generated comparison: model, setting, workload and schedule in a single small value.

Its JSON form leaves out every default, so that a shrunk one fits on a command line.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from harness.core import (
    GIB,
    Case,
    Dtype,
    Json,
    ModelSpec,
    OffloadConfig,
    PlannedCase,
    RecordError,
    Runner,
    SamplingParams,
    Setting,
    UsageError,
    Verdict,
    Workload,
    decode,
    encode,
)
from harness.plan import build_pair, parameter_shapes
from harness.settings.checkpoints import ensure_checkpoint
from harness.settings.tensors import MODEL_TYPES

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

LFM2, TOWER = "Lfm2ForCausalLM", "PromptTowerLlamaForCausalLM"
Architecture = Literal[
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen3ForCausalLM",
    "Lfm2ForCausalLM",
    "PromptTowerLlamaForCausalLM",
]
Schedule = Literal["in_order", "copy_late", "compute_late", "seeded"]
Instruments = tuple[str, ...]

T = TypeVar("T")
Draw = Callable[["SearchStrategy[T]"], T]

MODES = ("prefetch", "uva", "uva-copy")
VOCAB_SIZE = 64
MAX_POSITIONS = 64
SELECTORS = (
    *("self_attn", "mlp", "mlp.down_proj", "gate_up_proj", "input_layernorm", "short_conv"),
    "q_norm",
)
"""The last is a parameter of Qwen3 alone, the one before it of some of LFM2's layers."""
USUAL: Instruments = ("ordering", "integrity")
THOROUGH: Instruments = ("ordering", "integrity-full", "poison")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What hypothesis draws; everything else follows from it."""

    architecture: Architecture = "LlamaForCausalLM"
    num_layers: int = 1
    hidden_size: int = 16
    num_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 8
    intermediate_size: int = 8
    is_tied: bool = False
    dtype: Dtype = "float32"
    saved_dtype: Dtype = "float32"
    """Dtype on disk."""
    seed: int = 0
    """Of the weights."""
    runner: Runner = "v1"
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    schedule: Schedule = "in_order"
    schedule_seed: int = 0
    max_num_batched_tokens: int | None = None
    """Longer prompts are computed in chunks; None keeps the engine's own bound."""
    instruments: Instruments = USUAL
    prompts: tuple[tuple[int, ...], ...] = ((0,),)
    max_tokens: int = 4
    faults: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, Json]:
        """config.json of its model."""
        return {
            "architectures": [self.architecture],
            "model_type": MODEL_TYPES[self.architecture],
            "torch_dtype": self.saved_dtype,
            "vocab_size": VOCAB_SIZE,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_POSITIONS,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.is_tied,
            "attention_bias": False,
            "bos_token_id": 0,
            "eos_token_id": 0,
            **({"sliding_window": 8} if self.architecture == "MistralForCausalLM" else {}),
            **(self._two_kinds if self.architecture == LFM2 else {}),
            **({"num_tower_layers": 2} if self.architecture == TOWER else {}),
        }

    @property
    def _two_kinds(self) -> dict[str, Json]:
        """What LFM2's config has besides: every third layer attends, from the second on."""
        kinds = ["full_attention" if idx % 3 == 1 else "conv" for idx in range(self.num_layers)]
        return {"layer_types": kinds, "conv_L_cache": 3, "block_auto_adjust_ff_dim": False}

    @property
    def setting(self) -> Setting:
        """The target."""
        args: dict[str, Json] = {}
        if self.schedule != "in_order":
            args["schedule"] = self.schedule
        if self.schedule == "seeded":
            args["schedule_seed"] = self.schedule_seed
        if self.max_num_batched_tokens is not None:
            args["max_num_batched_tokens"] = self.max_num_batched_tokens
        return Setting(
            runner=self.runner,
            offload=self.offload,
            engine_args=args,
            faults=self.faults,
            instruments=self.instruments,
        )

    def build_model(self, path: str) -> ModelSpec:
        """Its model, with the checkpoint at `path`."""
        return ModelSpec(
            name="generated",
            architecture=self.architecture,
            config=self.config,
            dtype=self.dtype,
            source="seeded",
            path=path,
            seed=self.seed,
        )

    def plan(self, cache_dir: Path) -> PlannedCase:
        """The target against its baseline; the checkpoint is made in `cache_dir` if absent."""
        folder = ensure_checkpoint("generated", self.config, seed=self.seed, cache_dir=cache_dir)
        workload = Workload(
            name="generated",
            model=self.build_model(str(folder)),
            prompt_token_ids=self.prompts,
            sampling_params=SamplingParams(max_tokens=self.max_tokens, logprobs=5),
        )
        return build_pair(self.setting.baseline(), self.setting, workload)


def expected_verdict(case: Case) -> Verdict:
    """PASS, but VACUOUS where the expectation itself says that something asked for cannot be."""
    wanted = case.expected
    is_empty = not wanted.offloaded_bytes or wanted.ignored_requests or wanted.unmatched_selectors
    return Verdict.VACUOUS if is_empty else Verdict.PASS


def to_text(example: Example) -> str:
    """The example on one line of JSON, defaults left out."""
    return json.dumps(_without_defaults(example), separators=(",", ":"))


def from_text(text: str) -> Example:
    """The example that `to_text` wrote.

    Raises:
        UsageError: `text` is no such JSON.
    """
    try:
        return decode(Example, json.loads(text))
    except (ValueError, RecordError) as error:
        raise UsageError(f"--replay {text!r:.60} is no example: {error}") from None


def _without_defaults(value: Any) -> dict[str, Json]:
    default = type(value)()
    kept = {}
    for each in dataclasses.fields(value):
        mine = getattr(value, each.name)
        if mine != getattr(default, each.name):
            kept[each.name] = (
                _without_defaults(mine) if isinstance(mine, OffloadConfig) else encode(mine)
            )
    return kept


def make_examples(
    modes: Collection[str] = MODES, faults: tuple[str, ...] = ()
) -> SearchStrategy[Example]:
    """Hypothesis strategy for examples; small and plain ones are the simplest.

    Args:
        modes: of `MODES`, in which weights may be offloaded.
        faults: planted in every target.
    """
    from hypothesis import strategies as st

    kept = [mode for mode in (*MODES, "prefetch") if mode in modes]  # the most ways to go wrong

    @st.composite
    def draw_example(draw: Draw[Any]) -> Example:
        heads = draw(st.sampled_from([1, 2, 4]))
        schedule = draw(st.sampled_from(["in_order", "copy_late", "compute_late", "seeded"]))
        model = Example(
            architecture=draw(st.sampled_from(list(MODEL_TYPES))),
            num_layers=draw(st.integers(1, 6)),
            hidden_size=draw(st.sampled_from([16, 32, 48])),
            num_heads=heads,
            num_kv_heads=draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])),
            head_dim=draw(st.sampled_from([8, 16])),
            intermediate_size=draw(st.sampled_from([8, 24, 40])),
            is_tied=draw(st.booleans()),
            dtype=draw(st.sampled_from(["float32", "bfloat16"])),
            saved_dtype=draw(st.sampled_from(["float32", "bfloat16"])),
            seed=draw(st.integers(0, 3)),
        )
        prompt = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=24).map(tuple)
        return dataclasses.replace(
            model,
            runner=draw(st.sampled_from(["v1", "v2"])),
            offload=_draw_offload(draw, kept, model),
            schedule=schedule,
            schedule_seed=draw(st.integers(0, 999)) if schedule == "seeded" else 0,
            max_num_batched_tokens=draw(st.sampled_from([None, 16, 8])),
            instruments=draw(st.sampled_from([USUAL, THOROUGH])),
            prompts=draw(st.lists(prompt, min_size=1, max_size=4).map(tuple)),
            max_tokens=draw(st.integers(4, 8)),
            faults=faults,
        )

    return draw_example()


def _draw_offload(draw: Draw[Any], modes: list[str], model: Example) -> OffloadConfig:
    from hypothesis import strategies as st

    mode = draw(st.sampled_from(modes))
    pin = not draw(st.booleans())
    uva = mode == "uva" or (mode == "prefetch" and not draw(st.booleans()))
    selectors = frozenset(
        draw(st.lists(st.sampled_from(SELECTORS), max_size=2, unique=True))
        if draw(st.booleans())
        else ()
    )
    if mode == "prefetch":
        group = draw(st.integers(1, 6))
        is_double = draw(st.integers(0, 19)) == 19
        return OffloadConfig(
            offload_backend=draw(st.sampled_from(["auto", "prefetch"])),
            offload_group_size=group,
            offload_num_in_group=draw(st.integers(1, group)),
            offload_prefetch_step=draw(st.integers(1, 7)),
            offload_params=selectors,
            cpu_offload_gb=0.001 if is_double else 0.0,  # never read by prefetch
            pin_memory=pin,
            uva=uva,
        )
    shapes = parameter_shapes(model.build_model(""))
    total_bytes = sum(shape.num_bytes for shape in shapes if shape.layer_idx is not None)
    budget = math.ceil(total_bytes * draw(st.integers(0, 110)) / 100)
    return OffloadConfig(
        offload_backend=draw(st.sampled_from(["auto", "uva"])) if budget else "uva",
        cpu_offload_gb=budget / GIB,
        cpu_offload_params=selectors,
        pin_memory=pin,
        uva=uva,
    )
