"""Loading: by folder, reports folder or file; tolerant of a cut tail, strict about all else."""

import json

import pytest

from harness.core import RecordError
from harness.record import Recorder, latest_session, load_session, write_run
from tests.builders import build_case, build_result, target_run


def make_session(folder, num=2):
    with Recorder(folder) as recorder:
        for _ in range(num):
            recorder.save_result(build_result())
    return folder


def test_reports_folder_gives_its_latest_session(tmp_path):
    for name in ("20261130-000000-aaaa", "20261129-190501-ffff"):
        make_session(tmp_path / name)
    (tmp_path / "zzz").mkdir()
    assert latest_session(tmp_path).name == "20261130-000000-aaaa"
    assert load_session(tmp_path).session_id == "20261130-000000-aaaa"


def test_cases_file_gives_its_session(tmp_path):
    folder = make_session(tmp_path / "s")
    assert len(load_session(folder / "cases.jsonl").results) == 2


def test_runs_are_loaded_by_id(tmp_path):
    folder = make_session(tmp_path / "s")
    run = target_run(build_case())
    write_run(folder / "runs" / run.run_id, run)
    session = load_session(folder)
    assert session.runs[session.results[0].target_run_id] == run


@pytest.mark.parametrize("cut", [1, 30, 500])
def test_cut_last_line_is_tolerated_and_told(tmp_path, cut):
    folder = make_session(tmp_path / "s")
    data = (folder / "cases.jsonl").read_bytes()
    (folder / "cases.jsonl").write_bytes(data[: -cut - 1])
    session = load_session(folder)
    assert len(session.results) == 1
    assert session.problems[-1].startswith("cases.jsonl:2: the last line is cut off after ")


def test_last_line_that_lacks_only_its_newline_is_whole(tmp_path):
    folder = make_session(tmp_path / "s")
    data = (folder / "cases.jsonl").read_bytes()
    (folder / "cases.jsonl").write_bytes(data[:-1])
    assert len(load_session(folder).results) == 2


def test_damaged_line_in_the_middle_is_refused_with_its_place(tmp_path):
    folder = make_session(tmp_path / "s")
    lines = (folder / "cases.jsonl").read_text().splitlines(keepends=True)
    (folder / "cases.jsonl").write_text(lines[0][:50] + "\n" + lines[1])
    with pytest.raises(RecordError, match=r"cases\.jsonl:1:\d+: not JSON"):
        load_session(folder)


@pytest.mark.parametrize("file", ["manifest.json", "cases.jsonl"])
def test_other_schema_version_is_refused_naming_both(tmp_path, file):
    folder = make_session(tmp_path / "s", num=1)
    data = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**data, "schema_version": 99}) + "\n")
    with pytest.raises(RecordError, match=r"schema_version=99 is not supported.*schema_version 1;"):
        load_session(folder)


def test_whole_last_line_of_another_schema_is_refused_even_without_a_newline(tmp_path):
    folder = make_session(tmp_path / "s", num=1)
    (folder / "cases.jsonl").write_text('{"schema_version": 99}')
    with pytest.raises(RecordError, match="schema_version=99"):
        load_session(folder)


def test_unknown_key_in_a_case_is_refused(tmp_path):
    folder = make_session(tmp_path / "s", num=1)
    data = json.loads((folder / "cases.jsonl").read_text())
    (folder / "cases.jsonl").write_text(json.dumps({**data, "surprise": 1}) + "\n")
    with pytest.raises(RecordError, match="unknown key 'surprise'"):
        load_session(folder)


def test_lost_manifest_is_told_and_the_cases_still_load(tmp_path):
    folder = make_session(tmp_path / "s")
    (folder / "manifest.json").unlink()
    session = load_session(folder)
    assert len(session.results) == 2
    assert session.problems[0].startswith("manifest.json is missing")


def test_path_that_leads_nowhere_says_what_is_wanted(tmp_path):
    with pytest.raises(RecordError, match=r"is no session folder, reports folder or cases\.jsonl"):
        load_session(tmp_path / "nope")
    with pytest.raises(RecordError, match="holds no session"):
        load_session(tmp_path)
