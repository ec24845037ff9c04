"""What offload must do to a model, from config.json and the setting's numbers alone.

Written from vLLM's documented semantics; knows no engine, no torch and no checkpoint bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.core import (
    GIB,
    Backend,
    Expectation,
    Json,
    ModelSpec,
    OffloadConfig,
    Setting,
)
from harness.core.engine_names import VLLM

from .buffers import refill_order, slots
from .ranks import of_rank
from .shapes import TOWER_PREFIX, ParamShape, effective_dtype, loaded_shapes


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
    dtype, is_vllm = effective_dtype(setting, model), setting.engine in VLLM
    whole = loaded_shapes(model, dtype=dtype, keeps_shapes=is_vllm)
    loaded = of_rank(whole, model, setting, rank)
    layers = _by_layer(loaded)
    selectors: frozenset[str] = frozenset()
    seen: Sequence[ParamShape] = ()
    chosen: list[ParamShape] = []
    if backend == "uva":
        selectors = offload.cpu_offload_params
        tower = [param for param in loaded if param.name.startswith(TOWER_PREFIX)]
        seen = [*tower, *(param for layer in layers for param in layer)]
        chosen = list(_within_budget(_matching(seen, selectors), offload.cpu_offload_gb))
    elif backend == "prefetch":
        selectors = offload.offload_params
        seen = [param for layer in _grouped(layers, offload) for param in layer]
        chosen = _matching(seen, selectors)
    chosen = [param for param in chosen if not param.is_transient]
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
        all_params=tuple(p.name for p in loaded if not p.is_transient),
        graph_bytes=_graph_bytes(setting, chosen),
        **_pool(backend, ring, chosen, offload.offload_prefetch_step),
    )


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
    stack = [param for param in chosen if param.layer_idx is not None]
    return _largest_module(stack) if copies and has_graphs else 0


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
