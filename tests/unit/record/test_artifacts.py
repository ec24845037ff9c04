"""A run folder: written whole, read back equal, refused when damaged."""

import json
from dataclasses import replace

import pytest

from harness.core import RecordError, RunStatus
from harness.core.runfiles import write_json_atomic, write_text_atomic
from harness.record import read_run, write_run
from harness.record.artifacts import RunFolder
from tests.builders import PREFETCH, build_case, failed_run, target_run


def a_run(**changes):
    return replace(target_run(build_case(PREFETCH)), **changes)


def test_run_comes_back_equal(tmp_path):
    run = a_run()
    write_run(tmp_path / "r", run)
    assert read_run(tmp_path / "r") == run


def test_run_that_crashed_before_its_probe_comes_back_equal(tmp_path):
    run = failed_run(build_case(), RunStatus.CRASH)
    write_run(tmp_path / "r", a_run())
    write_run(tmp_path / "r", run)
    assert read_run(tmp_path / "r") == run


def test_run_file_holds_neither_outputs_nor_probe(tmp_path):
    write_run(tmp_path, a_run())
    data = json.loads((tmp_path / "run.json").read_text())
    assert data["schema_version"] == 1
    assert not {"outputs", "probe"} & set(data)
    assert len((tmp_path / "outputs.jsonl").read_text().splitlines()) == 2


def test_nothing_temporary_is_left_behind(tmp_path):
    write_run(tmp_path, a_run())
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["outputs.jsonl", "probe.json", "run.json"]


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.json"
    write_json_atomic(path, {"a": 1})
    with pytest.raises(UnicodeEncodeError):
        write_text_atomic(path, "\ud800")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_secrets_of_the_setting_and_the_log_never_reach_the_disk(tmp_path):
    run = a_run()
    setting = replace(run.setting, env={"HF_TOKEN": "hush"})
    run = replace(run, setting=setting, error="HF_TOKEN=hush", log_tail=("--hf-token hush",))
    write_run(tmp_path, run)
    assert all("hush" not in p.read_text() for p in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("run.json", "{", r"run\.json:\d+:\d+: not JSON"),
        ("run.json", "[]", "expected an object"),
        ("run.json", '{"schema_version": 2}', "schema_version=2 is not supported.*reads.* 1"),
        ("run.json", "{}", "schema_version=None is not supported"),
        ("run.json", '{"schema_version": 1, "nope": 1}', "unknown key 'nope'"),
        ("outputs.jsonl", '{"request_id": "0"', r"outputs\.jsonl:1:\d+: not JSON"),
        ("outputs.jsonl", "{}", r"outputs\.jsonl:1: missing key 'request_id'"),
        ("probe.json", '{"engine_version": 1}', "probe.json"),
    ],
)
def test_damaged_run_is_refused_with_its_place(tmp_path, file, text, message):
    write_run(tmp_path, a_run())
    (tmp_path / file).write_text(text)
    with pytest.raises(RecordError, match=message):
        read_run(tmp_path)


def test_run_that_never_finished_is_refused(tmp_path):
    with pytest.raises(RecordError, match="no such file; the run was not finished"):
        read_run(tmp_path)


def test_runs_are_read_on_first_access_and_only_finished_ones_are_listed(tmp_path):
    write_run(tmp_path / "a", a_run())
    write_run(tmp_path / "b", a_run())
    (tmp_path / "b" / "outputs.jsonl").write_text("damaged")
    (tmp_path / "unfinished").mkdir()
    runs = RunFolder(tmp_path)
    assert list(runs) == ["a", "b"]
    assert runs["a"] is runs["a"]
    with pytest.raises(RecordError):
        runs["b"]
    assert runs.get("unfinished") is None
    assert "../a" not in runs
