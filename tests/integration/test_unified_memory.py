"""On unified memory a pinned offload runs out where the same without pinning fits, and says why."""

from pathlib import Path

import pytest

from harness.cells import plan_matrix
from harness.core import Verdict
from harness.pipeline import Options, Session
from harness.settings import load_matrix

MATRIX = Path(__file__).parents[2] / "suites/lifecycle/matrices/unified_memory.yaml"
CAPACITY = 11_500_000
RUNNERS = ("v1", "v2")
OFFLOADS = ("prefetch", "uva")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    plan = plan_matrix(load_matrix(MATRIX), controls=True)
    with Session(tmp_path_factory.mktemp("out"), options=Options(jobs=2)) as opened:
        opened.run_plan(plan)
        yield opened


def find(session, runner, offload, *, pin):
    return next(
        r
        for r in session.results
        if r.case.role == "case"
        and r.case.target.runner == runner
        and r.case.target.offload.offload_id.startswith(offload)
        and r.case.target.offload.pin_memory is pin
    )


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("offload", OFFLOADS)
def test_without_pinning_it_fits(session, runner, offload):
    result = find(session, runner, offload, pin=False)

    assert result.verdict is Verdict.PASS, result.lead.summary
    memory = session.runs[result.target_run_id].probe.memory
    assert memory.device_peak_bytes < CAPACITY < memory.device_peak_bytes + memory.host_bytes
    assert memory.device_capacity_bytes == CAPACITY


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("offload", OFFLOADS)
def test_with_pinning_it_runs_out_and_says_why_in_one_line(session, runner, offload):
    result = find(session, runner, offload, pin=True)

    assert result.verdict is Verdict.ERROR
    reason = result.lead.summary
    assert "\n" not in reason
    pinned = {"prefetch": 2_953_216, "uva": 5_906_432}[offload]
    for words in (
        "target ran out of device memory",
        "asked for",
        f"of capacity {CAPACITY} bytes",
        f"pinned={pinned}",
        "pinned host bytes count against the device; do not pin (pin_memory: false",
    ):
        assert words in reason, reason


def test_the_control_and_the_null_runs_behave(session):
    controls = {r.case.role: r.verdict for r in session.results if r.case.role != "case"}

    assert controls == {"null": Verdict.PASS, "runner": Verdict.PASS, "control": Verdict.FAIL}
