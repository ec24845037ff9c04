"""Cases, runs and probes made by hand, for tests of judges, records and reports; no engine.

The model has `NUM_LAYERS` layers of two parameters of `PARAM_BYTES` each, and an embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.core import (
    BufferPoolInfo,
    Case,
    CaseResult,
    Expectation,
    Finding,
    HostInfo,
    Logprobs,
    MemoryTrace,
    ModelSpec,
    OffloadConfig,
    ParamPlacement,
    ProbeSnapshot,
    RequestOutput,
    Run,
    RunStatus,
    SamplingParams,
    Setting,
    Verdict,
    Workload,
    fold,
)

NUM_LAYERS = 4
PARAM_BYTES = 1000
EMBED_BYTES = 5000
KV_BYTES = 700
PROMPTS = ((1, 2, 3), (4, 5))
ANSWERS = ((10, 11, 12, 13), (20, 21, 22, 23))

NONE = OffloadConfig()
UVA = OffloadConfig(cpu_offload_gb=1.0)
PREFETCH = OffloadConfig(offload_group_size=2, offload_prefetch_step=1)
OFFLOADERS = {"none": "NoopOffloader", "uva": "UVAOffloader", "prefetch": "PrefetchOffloader"}


def build_model(**changes: Any) -> ModelSpec:
    config = {"num_hidden_layers": NUM_LAYERS, "vocab_size": 64, "hidden_size": 8}
    model = ModelSpec(
        name="toy", architecture="LlamaForCausalLM", config=config, path="toy", source="seeded"
    )
    return replace(model, **changes)


def build_workload(**model_changes: Any) -> Workload:
    return Workload(
        name="short",
        model=build_model(**model_changes),
        prompt_token_ids=PROMPTS,
        sampling_params=SamplingParams(max_tokens=len(ANSWERS[0])),
    )


def param_names(layers: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"layers.{i}.{part}" for i in layers for part in ("attn", "mlp"))


def build_expectation(setting: Setting, **changes: Any) -> Expectation:
    """UVA offloads layers 0 and 1; prefetch the last of each group of two: layers 1 and 3."""
    backend = setting.offload.resolved_backend
    layers = {"none": (), "uva": (0, 1), "prefetch": (1, 3)}[backend]
    expected = Expectation(
        runner=setting.runner,
        backend=backend,
        offloaded_layers=layers,
        offloaded_params=param_names(layers),
        offloaded_bytes=2 * PARAM_BYTES * len(layers),
        is_pinned=backend != "none" and setting.offload.pin_memory,
        is_uva=backend == "uva" and setting.offload.uva,
        ignored_requests=setting.offload.ignored_requests,
        all_params=("embed", *param_names(range(NUM_LAYERS))),
    )
    if backend == "prefetch":
        expected = replace(
            expected,
            pool_bytes=2 * PARAM_BYTES,
            slot_capacity=1,
            slots={1: 0, 3: 0},
            refill_after={1: 3, 3: 1},
        )
    return replace(expected, **changes)


def build_case(
    offload: OffloadConfig = UVA,
    *,
    baseline_offload: OffloadConfig = NONE,
    runner: str = "v2",
    expected: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    **changes: Any,
) -> Case:
    baseline = Setting(runner=runner, offload=baseline_offload)
    target = Setting(runner=runner, offload=offload)
    case = Case(
        case_id=f"toy/short/{baseline.setting_id}..{target.setting_id}",
        baseline=baseline,
        target=target,
        workload=build_workload(dtype=dtype),
        expected=build_expectation(target, **(expected or {})),
        expected_baseline=build_expectation(baseline),
        axes={"runner": runner, "backend": target.offload.resolved_backend},
    )
    return replace(case, **changes)


def build_null_case(**changes: Any) -> Case:
    return build_case(NONE, role="null", judges=("effect", "tokens"), **changes)


def build_params(expected: Expectation) -> tuple[ParamPlacement, ...]:
    """Every parameter where `expected` wants it."""
    made = [_param("embed", None, EMBED_BYTES, expected)]
    for layer in range(NUM_LAYERS):
        made += [_param(name, layer, PARAM_BYTES, expected) for name in param_names([layer])]
    return tuple(made)


def _param(name: str, layer: int | None, size: int, expected: Expectation) -> ParamPlacement:
    offloaded = name in expected.offloaded_params
    return ParamPlacement(
        name=name,
        layer_idx=layer,
        shape=(size // 4,),
        dtype="float32",
        num_bytes=size,
        space=("pinned" if expected.is_pinned else "host") if offloaded else "device",
        is_offloaded=offloaded,
        is_pinned=offloaded and expected.is_pinned,
        is_uva=offloaded and expected.is_uva,
        slot_idx=expected.slots.get(layer, None) if offloaded and layer is not None else None,
    )


def build_memory(expected: Expectation, **changes: Any) -> MemoryTrace:
    weights = EMBED_BYTES + 2 * NUM_LAYERS * PARAM_BYTES - expected.offloaded_bytes
    kinds = {"weights": weights, "buffer_pool": expected.pool_bytes, "kv_cache": KV_BYTES}
    total = sum(kinds.values())
    trace = MemoryTrace(
        device_bytes=total,
        device_peak_bytes=total + 100,
        pinned_bytes=expected.offloaded_bytes if expected.is_pinned else 0,
        host_bytes=0 if expected.is_pinned else expected.offloaded_bytes,
        by_kind=kinds,
    )
    return replace(trace, **changes)


def build_probe(setting: Setting, expected: Expectation, **changes: Any) -> ProbeSnapshot:
    """A probe that shows exactly what `expected` wants."""
    pool = None
    if expected.slot_capacity:
        pool = BufferPoolInfo(
            slot_capacity=expected.slot_capacity,
            num_bytes=expected.pool_bytes,
            slots=expected.slots,
            refill_after=expected.refill_after,
        )
    probe = ProbeSnapshot(
        engine_version="1",
        runner_class=f"engine.{setting.runner}.ModelRunner",
        runner=setting.runner,
        offloader_class=OFFLOADERS[expected.backend],
        reported_offloaded_bytes=expected.offloaded_bytes,
        effective_config={"enforce_eager": setting.enforce_eager, "model": "toy"},
        params=build_params(expected),
        buffer_pool=pool,
        memory=build_memory(expected),
        process_id=1 + int(setting.compute_hash()[:6], 16),
        is_core_process=setting.multiprocessing,
    )
    return replace(probe, **changes)


def build_output(
    idx: int,
    token_ids: Sequence[int],
    *,
    rows: Mapping[int, Mapping[int, float]] | None = None,
    shift: float = 0.0,
    with_logprobs: bool = True,
    **changes: Any,
) -> RequestOutput:
    """An answer; `rows` gives the top candidates (token -> logprob) of chosen positions."""
    tops = [
        dict((rows or {}).get(i, {token: -0.1 + shift, token + 1: -3.0 + shift}))
        for i, token in enumerate(token_ids)
    ]
    logprobs = Logprobs(
        chosen=tuple(top.get(t, -9.0) for top, t in zip(tops, token_ids, strict=True)),
        top_token_ids=tuple(tuple(top) for top in tops),
        top=tuple(tuple(top.values()) for top in tops),
    )
    output = RequestOutput(
        request_id=str(idx),
        step_idx=0,
        prompt_token_ids=PROMPTS[idx % len(PROMPTS)],
        token_ids=tuple(token_ids),
        logprobs=logprobs if with_logprobs else None,
        finish_reason="length",
    )
    return replace(output, **changes)


def build_run(
    setting: Setting,
    expected: Expectation,
    *,
    outputs: Sequence[RequestOutput] | None = None,
    **probe_changes: Any,
) -> Run:
    """An OK run that shows and answers what it should."""
    if outputs is None:
        outputs = [build_output(i, answer) for i, answer in enumerate(ANSWERS)]
    return Run(
        run_id=f"run-{setting.setting_id}",
        setting=setting,
        status=RunStatus.OK,
        outputs=tuple(outputs),
        probe=build_probe(setting, expected, **probe_changes),
        host=HostInfo(python="3.11", platform="test", cpu_count=2, num_threads=1),
        timings={"total": 1.5},
    )


def baseline_run(case: Case, **changes: Any) -> Run:
    return build_run(case.baseline, case.expected_baseline, **changes)


def target_run(case: Case, **changes: Any) -> Run:
    return build_run(case.target, case.expected, **changes)


def noop_run(case: Case, **changes: Any) -> Run:
    """A target whose offloader was never installed, though it was asked for; tokens are right."""
    bare = replace(case.expected_baseline, runner=case.expected.runner)
    return build_run(case.target, bare, **changes)


def failed_run(case: Case, status: RunStatus, error: str | None = "boom") -> Run:
    return Run(run_id="run-bad", setting=case.target, status=status, error=error)


def build_result(
    case: Case | None = None, findings: Sequence[Finding] = (), **changes: Any
) -> CaseResult:
    """A recorded case; without findings it passed."""
    case = case or build_case()
    words = tuple(findings) or (
        Finding(judge="tokens", verdict=Verdict.PASS, summary="ok", evidence={"num_tokens": 8}),
    )
    result = CaseResult(
        case=case,
        verdict=fold(words),
        findings=words,
        baseline_run_id=f"run-{case.baseline.setting_id}",
        target_run_id=f"run-{case.target.setting_id}",
        session_id="20261129-190501-ab12",
        started_at="2026-11-29T19:05:01+00:00",
        duration_s=1.0,
        command="harness run --cell x",
    )
    return replace(result, **changes)
