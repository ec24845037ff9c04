"""`harness report`: pages of a recorded session, again and in other formats."""

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
