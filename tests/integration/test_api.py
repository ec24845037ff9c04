"""`compare_two_settings` and its kin, called as vLLM's tests call theirs."""

import os
import sys

import pytest

from harness import compare_all_settings, compare_two_settings, load_run
from harness.core import (
    ComparisonErrored,
    ComparisonFailed,
    ComparisonUnsupported,
    ComparisonVacuous,
    SettingError,
    UsageError,
    Verdict,
)
from harness.pipeline import Options, Session

from .commandline import environment

MODEL = "tiny-llama"

UPSTREAM_SHAPED = """
import pytest

from harness import compare_two_settings


@pytest.mark.parametrize("disable_pin_memory", [False, True])
@pytest.mark.parametrize("disable_uva", [False, True])
def test_cpu_offload(disable_pin_memory, disable_uva):
    env = {
        "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": str(int(disable_pin_memory)),
        "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA": str(int(disable_uva)),
    }
    compare_two_settings(
        "hmellor/tiny-random-LlamaForCausalLM",
        [],
        ["--cpu-offload-gb", "1"],
        env1=env,
        env2=env,
    )
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One session for all comparisons: each unique setting is launched once."""
    with Session(tmp_path_factory.mktemp("out"), options=Options(jobs=1)) as opened:
        yield opened


@pytest.fixture
def compare(session):
    def run(arg1, arg2, env1=None, env2=None, **more):
        more = {"session": session, "workload": "short", **more}
        return compare_two_settings(MODEL, arg1, arg2, env1, env2, **more)

    return run


def test_a_test_written_for_upstream_runs_unchanged(pytester, monkeypatch):
    pytester.makepyfile(test_upstream=UPSTREAM_SHAPED)
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    child = pytester.run(sys.executable, "-m", "pytest", "-q", "-k", "False-False or True-True")

    child.assert_outcomes(passed=2, deselected=2)
    assert (pytester.path / "reports").is_dir()


def test_a_pass_returns_the_whole_result(compare):
    result = compare([], ["--cpu-offload-gb", "1"])

    assert Verdict.PASS is result.verdict
    assert {"effect", "placement", "memory", "tokens"} <= {f.judge for f in result.findings}


def test_flags_in_every_form_vllm_takes(compare):
    one = compare([], ["--offload-group-size=2", "--offload-params=gate_up_proj,down_proj"])
    two = compare(
        [], ["--offload-group-size", "2", "--offload-params", "gate_up_proj", "down_proj"]
    )

    assert one.case.target == two.case.target


def test_all_settings_against_the_first(session):
    results = compare_all_settings(
        MODEL,
        [[], ["--cpu-offload-gb", "1"], ["--offload-group-size", "2"]],
        [None, None, {"VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": "1"}],
        workload="short",
        session=session,
    )

    backends = [r.case.target.offload.resolved_backend for r in results]
    assert ["uva", "prefetch"] == backends
    assert [True, False] == [r.case.expected.is_pinned for r in results]


def test_lists_of_different_length_are_refused(session):
    with pytest.raises(UsageError, match="2 argument lists and 1 environments"):
        compare_all_settings(MODEL, [[], []], [None], session=session)
    with pytest.raises(UsageError, match="at least two"):
        compare_all_settings(MODEL, [[]], [None], session=session)


def test_an_ignored_request_is_vacuous(compare):
    both = ["--offload-group-size", "2", "--cpu-offload-gb", "1"]

    with pytest.raises(ComparisonVacuous, match="cpu_offload_gb=1") as raised:
        compare([], both)

    assert isinstance(raised.value, AssertionError)
    assert Verdict.VACUOUS is raised.value.result.verdict


def test_a_refusal_is_unsupported(compare):
    graphs = ["--no-enforce-eager", "--device", "cuda"]

    with pytest.raises(ComparisonUnsupported, match="enforce_eager"):
        compare(graphs, [*graphs, "--cpu-offload-gb", "1"])


def test_a_model_that_does_not_fit_is_an_error(compare):
    limit = ["--device-memory-bytes", "5000000"]

    with pytest.raises(ComparisonErrored, match="out of device memory"):
        compare(limit, [*limit, "--cpu-offload-gb", "1"])


def test_different_seeds_of_a_sampling_engine_fail(compare):
    with pytest.raises(ComparisonFailed, match="FAIL"):
        compare(
            ["--load-format", "dummy", "--seed", "1"],
            ["--load-format", "dummy", "--seed", "2", "--cpu-offload-gb", "1"],
            controls=False,
        )


def test_the_runner_is_forced_and_cannot_be_undone(compare):
    result = compare([], ["--cpu-offload-gb", "1"], force_v1_runner=True)
    assert ("v1", "v1") == (result.case.baseline.runner, result.case.target.runner)

    with pytest.raises(SettingError, match="asks for runner v2"):
        compare([], [], None, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, force_v1_runner=True)


def test_the_callers_environment_does_not_leak_in(compare, session, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY", "1")
    before = dict(os.environ)

    result = compare([], ["--cpu-offload-gb", "0.002"])

    target = session.runs[result.target_run_id]
    assert "v2" == target.probe.runner
    assert any(p.is_pinned for p in target.probe.params)
    assert before == dict(os.environ)


def test_each_unique_setting_is_launched_once(compare, session):
    compare([], ["--cpu-offload-gb", "1"])
    before = dict(session.runs)

    compare([], ["--cpu-offload-gb", "1"])

    assert before == session.runs


def test_a_launch_that_takes_too_long_is_an_error(tmp_path):
    with pytest.raises(ComparisonErrored, match=r"deadline_s=0\.001"):
        compare_two_settings(
            MODEL, [], ["--cpu-offload-gb", "1"], workload="short", max_wait_seconds=0.001,
            controls=False, reports_dir=tmp_path,
        )  # fmt: skip


def test_an_unknown_method_is_refused(compare):
    with pytest.raises(UsageError, match="method='encode' is not known; known: generate"):
        compare([], [], method="encode")


@pytest.mark.parametrize(
    "given", [{"max_wait_seconds": 9.0}, {"reports_dir": "somewhere"}], ids=lambda g: next(iter(g))
)
def test_what_a_given_session_decides_cannot_be_given_again(compare, given):
    (name,) = given
    with pytest.raises(UsageError, match=f"{name}=.* given together with session="):
        compare([], ["--cpu-offload-gb", "1"], **given)


def test_the_null_case_of_an_offloading_baseline_is_of_that_baseline(compare, session):
    compare(["--cpu-offload-gb", "0.002"], ["--offload-group-size", "2"])

    baselines = [r.case.baseline.offload.offload_id for r in session.results if not r.counts]
    assert "uva-gb0.002-pin1" in baselines


def test_an_interrupted_call_is_not_recorded_as_passed(tmp_path, monkeypatch):
    real = Session.compare

    def compare_or_stop(self, planned):
        if planned.case.role == "case":
            raise KeyboardInterrupt
        return real(self, planned)

    monkeypatch.setattr(Session, "compare", compare_or_stop)
    with pytest.raises(KeyboardInterrupt):
        compare_two_settings(
            MODEL, [], ["--cpu-offload-gb", "1"], workload="short", reports_dir=tmp_path
        )

    recorded = load_run(tmp_path)
    assert 3 == recorded.outcome.exit_code
    assert recorded.outcome.sentence.startswith("Interrupted: ")
