"""vLLM's own offloaders where something is wrong: planted defects, and what a CPU cannot do.

And with a core process of its own, where the probe must read the same.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core import encode
from harness.faults import FAULTS
from harness.interpreters import open_matrix
from harness.plan import build_pair
from harness.settings import load_model, load_workload

MATRICES = Path(__file__).parent / "matrices"
RUNNERS = ("v1", "v2")
UVA, COPY, PREFETCH = "uva-gb1-pin0", "uva-gb1-uva0-pin0", "prefetch-g1n1s3-pin0"
ARMS = {
    "wrong-refill-target": (RUNNERS, [PREFETCH], "FAIL"),
    "refill-dropped": (RUNNERS, [PREFETCH], "FAIL"),
    "host-copy-damaged": (RUNNERS, [UVA, COPY, PREFETCH], "FAIL"),
    # Nothing is offloaded then, and every token is equal.
    "offloader-not-installed": (["v2"], [UVA, COPY, PREFETCH], "VACUOUS"),
}
"""Fault -> the runners and the offloads that it must be tried on, and the verdict."""
OF_THE_PROCESS = ("process_id", "is_core_process", "env", "warnings")
"""Of a probe: which process was read, and what vLLM logged in just that one."""
OF_THE_CORE = (
    "distributed_executor_backend", "effective_attention_block_size",
    "kv_cache_size_tokens", "kv_cache_max_concurrency",
)  # fmt: skip
"""Of the effective configuration: what vLLM itself sets, or notes elsewhere, in a core apart."""


@pytest.fixture(scope="module")
def session(interpreter, plan_faults, run_cases):
    interpreter("vllm")
    workload = load_workload("short", load_model("tiny-llama"))
    vacuous = open_matrix(MATRICES / "vllm_emulation_vacuous.yaml").settings
    clean = open_matrix(MATRICES / "vllm_known_bad.yaml").settings
    prefetch = [s for s in clean if s.offload.offload_group_size]
    apart = [replace(s, multiprocessing=True) for s in prefetch]
    pairs = [build_pair(s.baseline(), s, workload) for s in [*vacuous, *prefetch]]
    pairs += [
        build_pair(s.baseline(), far, workload) for s, far in zip(prefetch, apart, strict=True)
    ]
    return run_cases([*plan_faults(MATRICES / "vllm_known_bad.yaml", ARMS), *pairs])


@pytest.mark.parametrize("fault", ARMS)
def test_a_planted_defect_is_found_by_the_judges_that_must_see_it(session, named, fault):
    runners, offloads, verdict = ARMS[fault]
    tried = named(session.results, fault)

    assert {f"{runner}-{offload}" for runner in runners for offload in offloads} == set(tried)
    wanted = FAULTS.get(fault)
    for cell, result in tried.items():
        objecting = {f.judge for f in result.findings if f.verdict.value in ("FAIL", "VACUOUS")}
        assert verdict == result.verdict.value, (cell, result.findings)
        assert wanted.num_judges <= len(objecting & set(wanted.killed_by)), (cell, result.findings)


@pytest.mark.parametrize("fault", ["wrong-refill-target", "refill-dropped"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_wrong_slot_is_named_with_the_layer_whose_weights_it_held(session, named, fault, runner):
    result = named(session.results, fault)[f"{runner}-{PREFETCH}"]
    said = {f.judge: f for f in result.findings}

    assert "FAIL" == said["integrity"].verdict.value == said["placement"].verdict.value
    assert "layers." in said["integrity"].summary


@pytest.mark.parametrize(
    ("offload", "word"),
    [("prefetch-g2n1s2-pin1", "pin"), ("uva-gb1-sel.gate_proj-pin0", "gate_proj")],
)
@pytest.mark.parametrize("runner", RUNNERS)
def test_what_cannot_be_had_is_vacuous_though_every_token_is_equal(
    session, named, runner, offload, word
):
    result = named(session.results)[f"{runner}-{offload}"]
    said = {f.judge: f.verdict.value for f in result.findings}

    assert "VACUOUS" == result.verdict.value == said["effect"], result.findings
    assert "PASS" == said["tokens"]
    assert word in result.lead.summary


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_core_process_of_its_own_shows_the_same_probe_as_in_process(session, runner):
    near, far = (
        next(
            r
            for r in session.results
            if (target := r.case.target).multiprocessing is apart
            and target.runner == runner
            and target.offload.offload_id == PREFETCH
            and not target.faults
        )
        for apart in (False, True)
    )

    assert ("PASS", "PASS") == (near.verdict.value, far.verdict.value), far.findings
    probes = [session.runs[r.target_run_id].probe for r in (near, far)]
    assert [False, True] == [probe.is_core_process for probe in probes]
    assert same_of(probes[0]) == same_of(probes[1])


def same_of(probe):
    """What two probes of one setting must agree in."""
    fields = {k: v for k, v in encode(probe).items() if k not in OF_THE_PROCESS}
    for name in ("device_peak_bytes", "process"):
        fields["memory"].pop(name, None)
    fields["integrity"].pop("num_reads")  # a core apart may run one step more than it needs
    for name in OF_THE_CORE:
        fields["effective_config"].pop(name, None)
    return fields
