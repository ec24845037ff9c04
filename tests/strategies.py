"""Hypothesis strategies for every core type; each value is one that the type itself allows."""

from hypothesis import strategies as st

from harness.core import (
    STEP_KINDS,
    BufferPoolInfo,
    Case,
    CaseResult,
    Divergence,
    Expectation,
    Finding,
    HostInfo,
    HostMemory,
    IntegrityTrace,
    Logprobs,
    MemoryTrace,
    ModelSpec,
    OffloadConfig,
    OrderingTrace,
    Outcome,
    ParamPlacement,
    Plan,
    PlannedCase,
    ProbeSnapshot,
    Race,
    RequestOutput,
    Run,
    RunKey,
    RunStatus,
    SamplingParams,
    Setting,
    Skipped,
    SlotEvent,
    Step,
    Tier,
    Verdict,
    Waive,
    WeightReads,
    Workload,
)
from harness.core.case import WAIVABLE

names = st.text("abcdefghij_.0123456789", min_size=1, max_size=12)
texts = st.text(max_size=20)
counts = st.integers(0, 2**40)
floats = st.floats(allow_nan=False, allow_infinity=False, width=32)
token_ids = st.lists(st.integers(0, 1023), max_size=4).map(tuple)
scalars = st.none() | st.booleans() | st.integers(-9, 9) | floats | texts
json_data = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2)
)
json_maps = st.dictionaries(names, json_data, max_size=2)
runners = st.sampled_from([None, "v1", "v2"])
selectors = st.frozensets(
    st.sampled_from(["gate_up_proj", "down_proj", "self_attn", "mlp.down_proj"]), max_size=2
)


def tuples(items, max_size=2):
    return st.lists(items, max_size=max_size).map(tuple)


@st.composite
def offload_configs(draw):
    group = draw(st.integers(0, 12))
    backend = st.sampled_from(["auto", "uva", "prefetch"] if group else ["auto", "uva"])
    return OffloadConfig(
        offload_backend=draw(backend),
        cpu_offload_gb=draw(st.sampled_from([0.0, 0.0001, 0.001, 0.5, 4.0])),
        cpu_offload_params=draw(selectors),
        offload_group_size=group,
        offload_num_in_group=draw(st.integers(1, group or 3)),
        offload_prefetch_step=draw(st.integers(1, 12)),
        offload_params=draw(selectors),
        pin_memory=draw(st.booleans()),
        uva=draw(st.booleans()),
    )


settings = st.builds(
    Setting,
    engine=st.sampled_from(["reference", "vllm"]),
    runner=runners,
    offload=offload_configs(),
    enforce_eager=st.booleans(),
    multiprocessing=st.booleans(),
    engine_args=st.dictionaries(names.map("x_{}".format), json_data, max_size=2),
    env=st.dictionaries(names.map("X_{}".format), st.none() | texts, max_size=2),
    python=st.none() | names,
    faults=tuples(names),
    instruments=tuples(st.sampled_from(["ordering", "integrity", "integrity-full", "poison"])),
)


@st.composite
def model_specs(draw):
    heads = draw(st.sampled_from([2, 4]))
    head_dim = draw(st.sampled_from([8, 16]))
    return ModelSpec(
        name=draw(names),
        architecture=draw(
            st.sampled_from(["LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"])
        ),
        config={
            "num_hidden_layers": draw(st.integers(1, 12)),
            "hidden_size": heads * head_dim,
            "num_attention_heads": heads,
            "num_key_value_heads": draw(st.sampled_from([1, 2])),
            "head_dim": head_dim,
            "intermediate_size": draw(st.integers(1, 40)),
            "vocab_size": draw(st.integers(1, 64)),
            "tie_word_embeddings": draw(st.booleans()),
        },
        dtype=draw(st.sampled_from(["float32", "bfloat16", "float16"])),
        source=draw(st.sampled_from(["seeded", "shipped", "local", "hub"])),
        path=draw(names),
        seed=draw(st.integers(0, 9)),
        stand_in_for=draw(st.none() | names),
    )


steps = st.builds(Step, kind=st.sampled_from(STEP_KINDS), args=json_maps)
sampling_params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 64),
    temperature=st.sampled_from([0.0, 0.7]),
    top_p=st.sampled_from([1.0, 0.9]),
    seed=st.none() | st.integers(0, 9),
    logprobs=st.none() | st.integers(0, 5),
    ignore_eos=st.booleans(),
)
workloads = st.builds(
    Workload,
    name=names,
    model=model_specs(),
    prompt_token_ids=st.lists(token_ids, min_size=1, max_size=2).map(tuple),
    sampling_params=sampling_params,
    steps=tuples(steps, max_size=1).map(lambda found: (*found, Step())),
    seed=st.integers(0, 9),
)
layer_maps = st.dictionaries(st.integers(0, 11), st.integers(0, 11), max_size=3)
expectations = st.builds(
    Expectation,
    runner=runners,
    backend=st.sampled_from(["none", "uva", "prefetch"]),
    offloaded_params=tuples(names),
    offloaded_layers=tuples(st.integers(0, 11)),
    offloaded_bytes=counts,
    pool_bytes=counts,
    graph_bytes=counts,
    slot_capacity=st.integers(0, 12),
    slots=layer_maps,
    refill_after=layer_maps,
    is_pinned=st.booleans(),
    is_uva=st.booleans(),
    ignored_requests=tuples(names),
    unmatched_selectors=tuples(names),
)
waives = st.builds(
    Waive,
    cell=texts,
    verdict=st.sampled_from(WAIVABLE),
    reason=texts,
    link=texts,
    expires=st.dates().map(lambda day: day.isoformat()),
)
cases = st.builds(
    Case,
    case_id=names,
    baseline=settings,
    target=settings,
    workload=workloads,
    tier=st.sampled_from(Tier),
    role=st.sampled_from(["case", "null", "control", "runner"]),
    judges=tuples(names),
    expected=expectations,
    expected_baseline=expectations,
    axes=st.dictionaries(names, texts, max_size=2),
    waive=st.none() | waives,
)
run_keys = st.builds(RunKey, setting=settings, workload=workloads, repeat=st.integers(0, 1))
planned_cases = st.builds(PlannedCase, case=cases, baseline_key=run_keys, target_key=run_keys)
skipped = st.builds(Skipped, case=cases, reason=texts)
plans = st.builds(
    Plan, cases=tuples(planned_cases, max_size=1), unsupported=tuples(skipped, max_size=1)
)


@st.composite
def logprobs(draw, length=None):
    rows = draw(st.integers(0, 3)) if length is None else length

    def row(items):
        return st.lists(items, min_size=rows, max_size=rows).map(tuple)

    return Logprobs(
        chosen=draw(row(floats)),
        top_token_ids=draw(row(token_ids)),
        top=draw(row(tuples(floats))),
    )


@st.composite
def request_outputs(draw):
    generated = draw(token_ids)
    return RequestOutput(
        request_id=draw(names),
        step_idx=draw(st.integers(0, 3)),
        prompt_token_ids=draw(token_ids),
        token_ids=generated,
        logprobs=draw(st.none() | logprobs(len(generated))),
        finish_reason=draw(st.sampled_from([None, "length", "stop"])),
        text=draw(st.none() | texts),
    )


host_infos = st.builds(
    HostInfo,
    python=names,
    platform=names,
    cpu_count=st.integers(1, 8),
    num_threads=st.integers(1, 8),
    torch=st.none() | names,
    device=names,
)
param_placements = st.builds(
    ParamPlacement,
    name=names,
    layer_idx=st.none() | st.integers(0, 11),
    shape=tuples(st.integers(0, 64)),
    dtype=names,
    num_bytes=counts,
    space=st.sampled_from(["device", "host", "pinned", "disk", "meta"]),
    is_offloaded=st.booleans(),
    is_pinned=st.booleans(),
    is_uva=st.booleans(),
    slot_idx=st.none() | st.integers(0, 11),
)
buffer_pools = st.builds(
    BufferPoolInfo,
    slot_capacity=st.integers(0, 12),
    num_bytes=counts,
    slots=layer_maps,
    refill_after=layer_maps,
)
host_memories = st.builds(
    HostMemory,
    rss_bytes=counts,
    pss_bytes=counts,
    group_rss_bytes=counts,
    group_pss_bytes=counts,
    num_processes=counts,
)
memory_traces = st.builds(
    MemoryTrace,
    device_bytes=counts,
    device_peak_bytes=counts,
    device_capacity_bytes=st.none() | counts,
    device_load_bytes=counts,
    device_load_peak_bytes=counts,
    pinned_bytes=counts,
    pinned_allocated_bytes=st.none() | counts,
    host_bytes=counts,
    granularity_bytes=counts,
    by_kind=st.dictionaries(names, counts, max_size=2),
    process=st.none() | host_memories,
)
races = st.builds(
    Race,
    kind=st.sampled_from(["read-write", "write-read", "write-write"]),
    resource=texts,
    first_site=names,
    second_site=names,
    first_stream=names,
    second_stream=names,
    missing=texts,
    count=counts,
)
slot_events = st.builds(
    SlotEvent,
    kind=st.sampled_from(["copy", "read"]),
    seq=counts,
    slot_idx=counts,
    layer_idx=counts,
    stream=names,
    is_race=st.booleans(),
)
ordering_traces = st.builds(
    OrderingTrace,
    num_work=counts,
    num_copies=counts,
    num_checked=counts,
    races=tuples(races),
    not_observed=tuples(texts),
    timeline=tuples(slot_events),
)
weight_reads = st.builds(
    WeightReads,
    name=names,
    layer_idx=st.none() | st.integers(0, 11),
    expected=names,
    digests=st.dictionaries(names, counts, max_size=2),
    slots=st.dictionaries(names, st.integers(0, 11), max_size=2),
)
integrity_traces = st.builds(
    IntegrityTrace,
    mode=st.sampled_from(["sampled", "full"]),
    num_reads=counts,
    num_hashed=counts,
    reads=tuples(weight_reads),
    not_observed=tuples(texts),
)
probe_snapshots = st.builds(
    ProbeSnapshot,
    engine_version=names,
    runner_class=names,
    runner=runners,
    offloader_class=names,
    reported_offloaded_bytes=counts,
    effective_config=json_maps,
    env=json_maps,
    params=tuples(param_placements),
    buffer_pool=st.none() | buffer_pools,
    memory=st.none() | memory_traces,
    process_id=counts,
    is_core_process=st.booleans(),
    ordering=st.none() | ordering_traces,
    integrity=st.none() | integrity_traces,
    drift=tuples(names),
    warnings=tuples(texts),
)
runs = st.builds(
    Run,
    run_id=names,
    setting=settings,
    status=st.sampled_from(RunStatus),
    outputs=tuples(request_outputs()),
    probe=st.none() | probe_snapshots,
    host=st.none() | host_infos,
    timings=st.dictionaries(names, floats, max_size=2),
    warm=st.booleans(),
    error=st.none() | texts,
    log_tail=tuples(texts),
)
divergences = st.builds(
    Divergence,
    request_idx=st.integers(0, 7),
    token_idx=st.integers(0, 63),
    expected=st.integers(-1, 1023),
    actual=st.integers(-1, 1023),
    expected_logprob=st.none() | floats,
    actual_logprob=st.none() | floats,
    margin=st.none() | floats,
    margin_is_bound=st.booleans(),
    near_tie=st.booleans(),
    num_differing=st.integers(0, 8),
)
findings = st.builds(
    Finding,
    judge=names,
    verdict=st.sampled_from(Verdict),
    summary=texts,
    divergence=st.none() | divergences,
    evidence=json_maps,
)
case_results = st.builds(
    CaseResult,
    case=cases,
    verdict=st.sampled_from(Verdict),
    findings=tuples(findings),
    baseline_run_id=st.none() | names,
    target_run_id=st.none() | names,
    session_id=names,
    started_at=names,
    duration_s=floats,
    command=texts,
)
outcomes = st.builds(
    Outcome,
    counts=st.dictionaries(names, counts, max_size=2),
    controls=st.dictionaries(names, texts, max_size=2),
    exit_code=st.integers(0, 5),
    sentence=texts,
    downgraded=st.booleans(),
    not_exact=tuples(texts),
)

CORE_TYPES = {
    OffloadConfig: offload_configs(),
    Setting: settings,
    ModelSpec: model_specs(),
    SamplingParams: sampling_params,
    Step: steps,
    Workload: workloads,
    Expectation: expectations,
    Waive: waives,
    Case: cases,
    RunKey: run_keys,
    PlannedCase: planned_cases,
    Skipped: skipped,
    Plan: plans,
    Logprobs: logprobs(),
    RequestOutput: request_outputs(),
    HostInfo: host_infos,
    Run: runs,
    ParamPlacement: param_placements,
    BufferPoolInfo: buffer_pools,
    HostMemory: host_memories,
    MemoryTrace: memory_traces,
    Race: races,
    SlotEvent: slot_events,
    OrderingTrace: ordering_traces,
    WeightReads: weight_reads,
    IntegrityTrace: integrity_traces,
    ProbeSnapshot: probe_snapshots,
    Divergence: divergences,
    Finding: findings,
    CaseResult: case_results,
    Outcome: outcomes,
}
"""Core type -> its strategy; a test holds that none is missing."""
