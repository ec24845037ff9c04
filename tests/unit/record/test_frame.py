"""The pandas frame: one flat row for each case."""

from harness.judge import judge_case
from harness.record import Recorder, load_session
from tests.builders import (
    NONE,
    PREFETCH,
    baseline_run,
    build_case,
    build_output,
    build_result,
    noop_run,
    target_run,
)


def frame_of(tmp_path, *results):
    with Recorder(tmp_path / "s") as recorder:
        for result in results:
            recorder.save_result(result)
    return load_session(tmp_path / "s").frame()


def judged(case, target):
    return build_result(case, judge_case(case, baseline_run(case), target))


def test_row_holds_verdicts_axes_and_bytes(tmp_path):
    case = build_case(PREFETCH)
    frame = frame_of(tmp_path, judged(case, target_run(case)), judged(case, noop_run(case)))
    good, silent = frame.iloc[0], frame.iloc[1]
    assert list(frame["verdict"]) == ["PASS", "VACUOUS"]
    assert good["axis_backend"] == "prefetch"
    assert good["judge_tokens"] == silent["judge_tokens"] == "PASS"
    assert silent["judge_effect"] == "VACUOUS"
    assert good["offloaded_bytes"] == 4000
    assert silent["offloaded_bytes"] == 0
    assert good["saved_bytes"] == 2000
    assert good["num_tokens"] == 8
    assert silent["cause"] == "offload never took effect under runner v2 (NoopOffloader is live)"


def test_first_difference_has_columns_of_its_own(tmp_path):
    case = build_case(PREFETCH)
    outputs = [build_output(0, (10, 11, 99, 13)), build_output(1, (20, 21, 22, 23))]
    row = frame_of(tmp_path, judged(case, target_run(case, outputs=outputs))).iloc[0]
    assert (row["first_request_idx"], row["first_token_idx"]) == (0, 2)
    assert (row["first_expected"], row["first_actual"]) == (12, 99)


def test_judge_that_abstained_is_empty_and_no_value_is_nested(tmp_path):
    case = build_case(NONE, role="null")
    frame = frame_of(tmp_path, judged(case, target_run(case)))
    assert frame.iloc[0]["judge_placement"] is None
    assert not frame.map(lambda v: isinstance(v, dict | list | tuple)).to_numpy().any()


def test_session_without_cases_gives_an_empty_frame(tmp_path):
    frame = frame_of(tmp_path)
    assert len(frame) == 0
    assert "verdict" in frame.columns
