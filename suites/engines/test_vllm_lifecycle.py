"""What happens to vLLM after the first generate, emulated: each verdict where it is true."""

from pathlib import Path

import pytest

MATRICES = Path(__file__).parent / "matrices"
FILES = ("vllm_emulation_lifecycle.yaml", "vllm_emulation_lifecycle_more.yaml")
WAIVED = (4, 5)  # both reloads under prefetch; all that sleep, and V1 beside V2
"""Cells of each file that are red as known."""
RUNNERS = ("v1", "v2")
UVA, COPY, PREFETCH = "uva-gb1-pin0", "uva-gb1-uva0-pin0", "prefetch-g1n1s3-pin0"
RIGHT = [
    (work, offload)
    for work, offloads in {
        "reload-changed": (UVA, COPY),
        "reload-same": (UVA, COPY),
        "engine-before": (COPY, PREFETCH),
    }.items()
    for offload in offloads
]
JUDGES = ("effect", "placement", "memory", "integrity", "tokens")


@pytest.fixture(scope="module")
def finished(interpreter, run_matrix):
    interpreter("vllm")
    return [run_matrix(MATRICES / file) for file in FILES]


@pytest.fixture(scope="module")
def cells(finished):
    """(lifecycle, runner, offload) -> result."""
    return {
        (r.case.workload.name, r.case.target.runner, r.case.target.offload.offload_id): r
        for done in finished
        for r in done.results("case")
    }


def words(result):
    """Judge -> verdict."""
    return {f.judge: f.verdict.value for f in result.findings}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(("work", "offload"), RIGHT)
def test_vllm_is_right_after_every_step(cells, work, runner, offload):
    result = cells[work, runner, offload]
    assert dict.fromkeys(JUDGES, "PASS") == words(result), result.findings


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("work", "place"),
    [
        ("reload-changed", "after step 1 (reload_weights changed)"),
        ("reload-same", "after step 2 (generate)"),
    ],
)
def test_a_reload_misses_the_host_copies_of_a_prefetch_offloader(cells, work, runner, place):
    result = cells[work, runner, PREFETCH]
    told = {f.judge: f for f in result.findings}
    assert "FAIL" == told["integrity"].verdict.value == told["tokens"].verdict.value
    assert told["integrity"].summary.startswith(place)
    assert "PASS" == told["effect"].verdict.value == told["placement"].verdict.value


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("offload", [COPY, PREFETCH])
def test_a_sleep_that_frees_nothing_proves_nothing(cells, runner, offload):
    result = cells["sleep-1", runner, offload]
    assert "VACUOUS" == result.verdict.value
    assert "sleep level 1 freed nothing" in result.lead.summary
    assert "PASS" == words(result)["tokens"]


def test_every_red_cell_is_waived_by_name_and_the_controls_are_right(finished, cells):
    assert len(cells) == 20
    for done, num in zip(finished, WAIVED, strict=True):
        outcome = done.answer["outcome"]
        assert 0 == done.code, outcome["sentence"]
        assert {"ok"} == set(outcome["controls"].values())
        assert num == sum(r.is_waived for r in done.results("case", "runner"))
        assert f"{num} cells are waived" in outcome["sentence"]
