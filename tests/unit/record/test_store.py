"""The recorder: whole lines, a manifest from the start, secrets out, never twice."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core import Outcome, RecordError
from harness.record import Recorder, load_session, new_session_id
from tests.builders import build_case, build_result

OUTCOME = Outcome(counts={"PASS": 1}, controls={}, exit_code=0, sentence="All is well.")


def test_session_comes_back_as_it_was_saved(tmp_path):
    result = build_result()
    with Recorder(tmp_path / "s", {"matrix": "default", "argv": ["run"]}) as recorder:
        recorder.save_result(result)
        recorder.close(OUTCOME)
    session = load_session(tmp_path / "s")
    assert session.results == (result,)
    assert session.outcome == OUTCOME
    assert session.problems == ()
    assert session.manifest["matrix"] == "default"
    assert session.manifest["argv"] == ["run"]
    assert {"schema_version", "session_id", "started_at", "finished_at", "versions"} <= set(
        session.manifest
    )


def test_manifest_is_there_before_the_first_case(tmp_path):
    recorder = Recorder(tmp_path / "s")
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert manifest["session_id"] == "s"
    assert manifest["outcome"] is None
    recorder.close()


def test_each_case_is_on_disk_as_one_line_when_saved(tmp_path):
    recorder = Recorder(tmp_path / "s")
    for number in (1, 2):
        recorder.save_result(build_result())
        text = (tmp_path / "s" / "cases.jsonl").read_text()
        assert text.endswith("\n")
        assert len(text.splitlines()) == number
    recorder.close()


def test_killed_session_keeps_every_case_it_had(tmp_path):
    script = (
        "import os; from pathlib import Path; from harness.record import Recorder;"
        "from tests.builders import build_result;"
        f"r = Recorder(Path({str(tmp_path / 's')!r})); r.save_result(build_result());"
        "os._exit(9)"
    )
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root)}
    ended = subprocess.run([sys.executable, "-c", script], cwd=root, env=env, check=False)
    assert ended.returncode == 9
    session = load_session(tmp_path / "s")
    assert len(session.results) == 1
    assert session.outcome is None
    assert session.problems == ("the session never finished: cases may be missing",)


def test_secrets_never_reach_the_record(tmp_path):
    case = build_case()
    case = replace(case, target=replace(case.target, env={"HF_TOKEN": "hush", "N": "1"}))
    manifest = {"argv": ["run", "--hf-token", "hush"], "env": {"API_KEY": "hush"}}
    with Recorder(tmp_path / "s", manifest) as recorder:
        recorder.save_result(build_result(case, command="HF_TOKEN=hush harness run"))
        recorder.update_manifest(note="DB_PASSWORD=hush")
    files = [p for p in (tmp_path / "s").iterdir() if p.is_file()]
    assert len(files) == 2
    assert all("hush" not in p.read_text() for p in files)
    assert load_session(tmp_path / "s").results[0].case.target.env == {"HF_TOKEN": "***", "N": "1"}


def test_folder_that_holds_a_session_is_refused(tmp_path):
    Recorder(tmp_path / "s").close()
    with pytest.raises(RecordError, match="already holds a session"):
        Recorder(tmp_path / "s")


def test_closed_session_takes_no_more(tmp_path):
    recorder = Recorder(tmp_path / "s")
    recorder.close(OUTCOME)
    recorder.close()
    with pytest.raises(RecordError, match="the session is closed"):
        recorder.save_result(build_result())
    assert load_session(tmp_path / "s").outcome == OUTCOME


def test_session_ids_are_unique_and_sort_by_time():
    ids = {new_session_id() for _ in range(20)}
    assert len(ids) > 15
    assert all(len(i) == 20 and i[8] == i[15] == "-" for i in ids)
