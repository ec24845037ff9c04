"""`harness report`: pages of a recorded session, again and in other formats."""

import json
import shutil
import xml.etree.ElementTree as ET

import pytest


def test_html_is_written_where_asked(cli, recorded, tmp_path, cells):
    page = tmp_path / "deep" / "page.html"

    answer = cli("report", recorded.session, "-o", page)

    assert (0, "") == (answer.code, answer.err)
    assert f"report  {page}" in answer.out
    assert cells[0] in page.read_text()


def test_without_a_session_the_latest_is_taken(cli, recorded, tmp_path):
    answer = cli("report", recorded.session.parent, "-o", tmp_path / "r.html", "--json")

    assert str(recorded.session) == answer.json["session"]
    assert 0 == answer.json["outcome"]["exit_code"]


@pytest.mark.parametrize(("name", "mark"), [("junit", "<testsuite"), ("markdown", "| ")])
def test_other_formats(cli, recorded, tmp_path, name, mark):
    answer = cli("report", recorded.session, "--format", name, "-o", tmp_path / "page")

    assert 0 == answer.code
    assert mark in (tmp_path / "page").read_text()


def test_unknown_format_is_refused(cli, recorded):
    answer = cli("report", recorded.session, "--format", "pdf")

    assert 2 == answer.code
    assert "harness: --format 'pdf' is not known; known: html, junit, markdown\n" == answer.err


def cut(recorded, folder, keep, **manifest):
    """A copy of the recorded session with only its first `keep` cases."""
    shutil.copytree(recorded.session, folder)
    lines = (folder / "cases.jsonl").read_text().splitlines(keepends=True)
    (folder / "cases.jsonl").write_text("".join(lines[:keep]))
    data = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**data, **manifest}))
    return folder


def test_an_unfinished_session_says_so(cli, recorded, tmp_path):
    folder = cut(recorded, tmp_path / "s", 5, outcome=None)

    answer = cli("report", folder)
    junit = cli("report", folder, "--format", "junit")

    assert (0, 0) == (answer.code, junit.code)
    assert "Unfinished: 5 of 8 cases were recorded." in answer.out
    root = ET.parse(folder / "junit.xml").getroot()
    assert ["Unfinished"] == [e.get("message").split(":")[0] for e in root.iter("error")]
    assert "1" == root.get("errors")


def test_merging_an_incomplete_shard_is_an_error_in_every_form(cli, recorded, tmp_path):
    cut(recorded, tmp_path / "all" / "one", 4, shard="1/2")

    answer = cli("report", "--merge", tmp_path / "all")
    junit = cli("report", tmp_path / "all" / "merged", "--format", "junit")

    assert 3 == answer.code, answer.out
    assert "Incomplete: 4 of 8 planned cases were recorded (shard 1/2, session" in answer.out
    assert "shard 2/2 is missing" in answer.out
    assert 0 == junit.code
    root = ET.parse(tmp_path / "all" / "merged" / "junit.xml").getroot()
    (error,) = root.iter("error")
    assert error.get("message").startswith("Incomplete: 4 of 8")


def test_merging_whole_shards_exits_as_they_did(cli, recorded, tmp_path):
    shutil.copytree(recorded.session, tmp_path / "all" / "one")

    assert 0 == cli("report", "--merge", tmp_path / "all").code
