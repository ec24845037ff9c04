"""Merging shards: every case once, contradictions refused, runs brought along."""

from dataclasses import replace

import pytest

from harness.core import Outcome, RecordError, Verdict
from harness.record import Recorder, load_session, merge_sessions, write_run
from tests.builders import (
    PREFETCH,
    UVA,
    build_case,
    build_null_case,
    build_result,
    target_run,
)

NULL = build_result(build_null_case())


def conclude(results):
    return Outcome(counts={"PASS": len(results)}, controls={}, exit_code=0, sentence="Merged.")


def make_shard(folder, *results, **manifest):
    with Recorder(folder, manifest) as recorder:
        for result in results:
            recorder.save_result(result)
            if not (recorder.runs_dir / result.target_run_id).exists():
                run = target_run(result.case)
                write_run(recorder.runs_dir / result.target_run_id, run)
        recorder.close(conclude(results))
    return folder


def test_shards_become_one_session_with_shared_controls_once(tmp_path):
    first, second = build_result(build_case(UVA)), build_result(build_case(PREFETCH))
    slower = replace(NULL, duration_s=9.0, session_id="other")
    shards = [
        make_shard(tmp_path / "a", NULL, first, models=["toy"], matrix="m"),
        make_shard(tmp_path / "b", slower, second, models=["toy", "big"], matrix="m"),
    ]
    merged = merge_sessions(shards, tmp_path / "all", conclude=conclude)
    assert merged.results == (NULL, first, second)
    assert merged.outcome == conclude(merged.results)
    assert merged.manifest["models"] == ["toy", "big"]
    assert merged.manifest["merged_from"] == ["a", "b"]
    assert merged.manifest["shard_problems"] == []
    assert set(merged.runs) == {r.target_run_id for r in (NULL, first, second)}
    assert merged.runs[second.target_run_id] == target_run(second.case)


def test_case_with_another_verdict_is_refused(tmp_path):
    failed = replace(NULL, verdict=Verdict.FAIL)
    shards = [make_shard(tmp_path / "a", NULL), make_shard(tmp_path / "b", failed)]
    with pytest.raises(RecordError, match=r"different verdicts \(PASS, FAIL\) in .*a and .*b"):
        merge_sessions(shards, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_case_with_another_expectation_is_refused(tmp_path):
    expected = replace(NULL.case.expected, offloaded_bytes=1)
    other = replace(NULL, case=replace(NULL.case, expected=expected))
    shards = [make_shard(tmp_path / "a", NULL), make_shard(tmp_path / "b", other)]
    with pytest.raises(RecordError, match="different settings, workload or expectation"):
        merge_sessions(shards, tmp_path / "all")


def test_problems_of_a_shard_are_carried_along(tmp_path):
    folder = make_shard(tmp_path / "a", NULL, build_result())
    data = (folder / "cases.jsonl").read_bytes()
    (folder / "cases.jsonl").write_bytes(data[:-30])
    merged = merge_sessions([folder], tmp_path / "all", conclude=conclude)
    assert len(merged.results) == 1
    assert "the last line is cut off" in merged.manifest["shard_problems"][0]
    assert merged.outcome.exit_code == 3
    assert "the last line is cut off" in merged.outcome.sentence


def test_merging_without_a_conclusion_stays_unfinished(tmp_path):
    merge_sessions([make_shard(tmp_path / "a", NULL)], tmp_path / "all")
    assert load_session(tmp_path / "all").outcome is None


def test_merging_nothing_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"paths=\[\] names no session"):
        merge_sessions([], tmp_path / "all")


def test_a_shard_with_fewer_cases_than_planned_never_merges_to_a_pass(tmp_path):
    shards = [
        make_shard(tmp_path / "a", NULL, build_result(), num_cases=2, shard="1/2"),
        make_shard(tmp_path / "b", NULL, num_cases=5, shard="2/2"),
    ]
    merged = merge_sessions(shards, tmp_path / "all", conclude=conclude)
    assert merged.manifest["num_cases"] == 6
    assert merged.outcome.exit_code == 3
    assert merged.outcome.sentence == (
        "Incomplete: 2 of 6 planned cases were recorded "
        "(shard 2/2, session b: 1 of 5 cases were recorded). So far: Merged."
    )
    again = merge_sessions([tmp_path / "all"], tmp_path / "again", conclude=conclude)
    assert again.outcome.exit_code == 3


def test_an_interrupted_shard_is_named(tmp_path):
    folder = make_shard(tmp_path / "a", NULL, num_cases=1, is_cut_short=True)
    merged = merge_sessions([folder], tmp_path / "all", conclude=conclude)
    assert "session a: interrupted: 1 of 1 cases were recorded" in merged.outcome.sentence
    assert merged.outcome.exit_code == 3


def test_a_shard_that_never_finished_is_named(tmp_path):
    with Recorder(tmp_path / "a", {"num_cases": 4}) as recorder:
        recorder.save_result(NULL)
    merged = merge_sessions([tmp_path / "a"], tmp_path / "all", conclude=conclude)
    assert "session a: unfinished: 1 of 4 cases were recorded" in merged.outcome.sentence
    assert merged.outcome.exit_code == 3


def test_a_missing_shard_is_named_and_a_failure_stays_one(tmp_path):
    shards = [
        make_shard(tmp_path / "a", NULL, num_cases=1, shard="1/3"),
        make_shard(tmp_path / "b", NULL, num_cases=1, shard="3/3"),
    ]
    merged = merge_sessions(shards, tmp_path / "all", conclude=conclude)
    assert "(shard 2/3 is missing)" in merged.outcome.sentence
    assert merged.manifest["gaps"] == ["shard 2/3 is missing"]
    assert merged.outcome.exit_code == 3

    failed = merge_sessions(
        shards, tmp_path / "bad", conclude=lambda r: replace(conclude(r), exit_code=1)
    )
    assert failed.outcome.exit_code == 1


def test_shards_of_different_cuts_are_not_whole(tmp_path):
    shards = [
        make_shard(tmp_path / "a", NULL, shard="1/1"),
        make_shard(tmp_path / "b", NULL, shard="2/2"),
    ]
    merged = merge_sessions(shards, tmp_path / "all", conclude=conclude)
    assert "different cuts were given: 1/1, 2/2" in merged.outcome.sentence


def test_whole_shards_merge_to_what_their_cases_say(tmp_path):
    shards = [
        make_shard(tmp_path / "a", NULL, build_result(), num_cases=2, shard="1/2"),
        make_shard(tmp_path / "b", NULL, num_cases=1, shard="2/2"),
    ]
    merged = merge_sessions(shards, tmp_path / "all", conclude=conclude)
    assert (merged.outcome.exit_code, merged.outcome.sentence) == (0, "Merged.")
    assert merged.manifest["num_cases"] == 2


def test_display_names_of_stand_ins_survive(tmp_path):
    shown = {"toy": "toy (stand-in for owner/big)"}
    merged = merge_sessions([make_shard(tmp_path / "a", NULL, models=shown)], tmp_path / "all")
    assert merged.manifest["models"] == shown
