"""What offload must do to a model, from config.json and the setting's numbers alone.

Written from vLLM's documented semantics; knows no engine, no torch and no checkpoint bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.core import (
    DTYPE_BYTES,
    GIB,
    Backend,
    Expectation,
    Json,
    ModelSpec,
    OffloadConfig,
    Setting,
    SettingError,
)

from .buffers import refill_order, slots
from .ranks import of_rank

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM")
_DTYPE_NAMES = {"half": "float16", "float": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamShape:
    """One parameter as the engine names it, fused where the engine fuses."""

    name: str
    """Full dotted name."""
    layer_idx: int | None
    """Decoder layer, None outside the stack."""
    relative_name: str
    """Name within the layer; equals `name` outside the stack."""
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def parameter_shapes(model: ModelSpec, *, dtype: str | None = None) -> tuple[ParamShape, ...]:
    """Every parameter of a model in the engine's order.

    Args:
        model: needs only its architecture, config and dtype.
        dtype: computes in this dtype instead of the model's own.

    Raises:
        SettingError: the architecture or dtype is unknown, or the config lacks a size.
    """
    if model.architecture not in ARCHITECTURES:
        raise SettingError(
            f"architecture={model.architecture!r} of model {model.name!r} has no placement "
            f"arithmetic; known: {', '.join(ARCHITECTURES)}"
        )
    dtype = dtype or model.dtype
    if dtype not in DTYPE_BYTES:
        raise SettingError(f"dtype={dtype!r} must be one of {', '.join(DTYPE_BYTES)}")
    hidden, vocab = model_size(model, "hidden_size"), model_size(model, "vocab_size")
    layer = tuple(_layer_shapes(model))
    found = [("model.embed_tokens.weight", None, "model.embed_tokens.weight", (vocab, hidden))]
    shapes: list[tuple[str, int | None, str, tuple[int, ...]]] = [*found]
    for idx in range(model_size(model, "num_hidden_layers")):
        shapes += [(f"model.layers.{idx}.{name}", idx, name, shape) for name, shape in layer]
    shapes.append(("model.norm.weight", None, "model.norm.weight", (hidden,)))
    if not model.config.get("tie_word_embeddings", False):
        shapes.append(("lm_head.weight", None, "lm_head.weight", (vocab, hidden)))
    return tuple(
        ParamShape(name=name, layer_idx=idx, relative_name=relative, shape=shape, dtype=dtype)
        for name, idx, relative, shape in shapes
    )


def expect(setting: Setting, model: ModelSpec, *, rank: int = 0) -> Expectation:
    """What a run of `setting` on `model` must show in the worker of `rank`.

    Raises:
        SettingError: the model's parameters cannot be computed.
    """
    if setting.engine == "accelerate":
        from .accelerate import expect_hooks

        return expect_hooks(setting, model)
    offload = setting.offload
    backend = offload.resolved_backend
    whole = parameter_shapes(model, dtype=effective_dtype(setting, model))
    params = of_rank(whole, model, setting, rank)
    layers = _by_layer(params)
    selectors: frozenset[str] = frozenset()
    seen: Sequence[ParamShape] = ()
    chosen: list[ParamShape] = []
    if backend == "uva":
        selectors = offload.cpu_offload_params
        seen = [param for layer in layers for param in layer]
        chosen = list(_within_budget(_matching(seen, selectors), offload.cpu_offload_gb))
    elif backend == "prefetch":
        selectors = offload.offload_params
        seen = [param for layer in _grouped(layers, offload) for param in layer]
        chosen = _matching(seen, selectors)
    ring = tuple(dict.fromkeys(p.layer_idx for p in chosen if p.layer_idx is not None))
    return Expectation(
        runner=setting.runner,
        backend=backend,
        offloaded_params=tuple(p.name for p in chosen),
        offloaded_layers=ring,
        offloaded_bytes=sum(p.num_bytes for p in chosen),
        is_pinned=backend != "none" and offload.pin_memory,
        is_uva=backend == "uva" and offload.uva,
        ignored_requests=offload.ignored_requests,
        unmatched_selectors=_unmatched(seen, selectors),
        all_params=tuple(p.name for p in params),
        graph_bytes=_graph_bytes(setting, chosen),
        **_pool(backend, ring, chosen, offload.offload_prefetch_step),
    )


def _layer_shapes(model: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one decoder layer, in the order the engine walks them."""
    hidden, heads = model_size(model, "hidden_size"), model_size(model, "num_attention_heads")
    kv_heads = model_size(model, "num_key_value_heads", heads)
    head_dim = model_size(model, "head_dim", hidden // heads)
    intermediate = model_size(model, "intermediate_size")
    is_qwen3 = model.architecture == "Qwen3ForCausalLM"
    qkv = (heads + 2 * kv_heads) * head_dim
    for name in ("attention_bias", "mlp_bias"):
        if model.config.get(name):
            raise SettingError(
                f"{name}=True in the config of model {model.name!r} has no placement arithmetic"
            )
    yield "self_attn.qkv_proj.weight", (qkv, hidden)
    yield "self_attn.o_proj.weight", (hidden, heads * head_dim)
    if is_qwen3:
        yield "self_attn.q_norm.weight", (head_dim,)
        yield "self_attn.k_norm.weight", (head_dim,)
    yield "mlp.gate_up_proj.weight", (2 * intermediate, hidden)
    yield "mlp.down_proj.weight", (hidden, intermediate)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)


def model_size(model: ModelSpec, name: str, default: int | None = None) -> int:
    """A size from the model's config.

    Raises:
        SettingError: it is missing, or no whole number above 0.
    """
    found = model.config.get(name)
    found = default if found is None else found
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise SettingError(
            f"{name}={found!r} in the config of model {model.name!r} must be a whole number >= 1"
        )
    return found


def effective_dtype(setting: Setting, model: ModelSpec) -> str:
    """The dtype that the engine computes in: its argument's, or the model's own."""
    asked: Json = setting.engine_args.get("dtype")
    if asked == "auto":
        asked = model.config.get("dtype") or model.config.get("torch_dtype")
    return _DTYPE_NAMES.get(str(asked), str(asked)) if asked else model.dtype


def _by_layer(params: Sequence[ParamShape]) -> list[list[ParamShape]]:
    layers: dict[int, list[ParamShape]] = {}
    for param in params:
        if param.layer_idx is not None:
            layers.setdefault(param.layer_idx, []).append(param)
    return list(layers.values())


def _grouped(
    layers: Sequence[list[ParamShape]], offload: OffloadConfig
) -> Iterator[list[ParamShape]]:
    """The last `num_in_group` layers of each group; an unfinished last group may have none."""
    group, num = offload.offload_group_size, offload.offload_num_in_group
    return (layer for idx, layer in enumerate(layers) if idx % group >= group - num)


def _selects(selector: str, name: str) -> bool:
    """Selectors are whole dot-segments: `mlp` and `mlp.down_proj` match, `down` does not."""
    return f".{selector}." in f".{name}."


def _matching(params: Sequence[ParamShape], selectors: frozenset[str]) -> list[ParamShape]:
    return [
        p for p in params if not selectors or any(_selects(s, p.relative_name) for s in selectors)
    ]


def _unmatched(params: Sequence[ParamShape], selectors: frozenset[str]) -> tuple[str, ...]:
    unmatched = (s for s in selectors if not any(_selects(s, p.relative_name) for p in params))
    return tuple(sorted(unmatched))


def _within_budget(params: Sequence[ParamShape], budget_gb: float) -> Iterator[ParamShape]:
    """Take parameters until the budget is reached; the one that reaches it is taken whole."""
    budget_bytes, taken_bytes = int(budget_gb * GIB), 0
    for param in params:
        if taken_bytes >= budget_bytes:
            return
        taken_bytes += param.num_bytes
        yield param


def _graph_bytes(setting: Setting, chosen: Sequence[ParamShape]) -> int:
    """What the embedded engine's graphs copy into on forward: one module's, shared by all."""
    copies = setting.offload.resolved_backend == "uva" and not setting.offload.uva
    has_graphs = setting.engine == "reference" and not setting.enforce_eager
    return _largest_module(chosen) if copies and has_graphs else 0


def _largest_module(chosen: Sequence[ParamShape]) -> int:
    """Bytes of buffers, one for each distinct parameter, that can hold any one module's."""
    return sum({(p.relative_name, p.shape, p.dtype): p.num_bytes for p in chosen}.values())


def _pool(
    backend: Backend, ring: tuple[int, ...], chosen: Sequence[ParamShape], step: int
) -> dict[str, Json]:
    """Slots and bytes of the buffer pool: `step` slots for each distinct parameter of a module."""
    if backend != "prefetch" or not ring:
        return {}
    refill = refill_order(len(ring), step)
    return {
        "pool_bytes": step * _largest_module(chosen),
        "slot_capacity": step,
        "slots": dict(zip(ring, slots(len(ring), step), strict=True)),
        "refill_after": {layer: ring[refill[i]] for i, layer in enumerate(ring)},
    }
