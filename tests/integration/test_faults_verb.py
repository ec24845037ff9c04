"""`harness faults`: the kill table, printed, recorded and shown."""

import json

import pytest

from .commandline import run_harness

NAMES = ("wrong-refill-target", "offloader-not-installed", "other-slot-numbers", "zero-budget",
         "reload-misses-master")  # fmt: skip


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    return run_harness("faults", *NAMES, "-o", tmp_path_factory.mktemp("reports"))


def test_all_as_it_must_be_exits_with_0(answer):
    assert 0 == answer.code, answer.out + answer.err
    assert "2 of 2 defects caught on every runner and mode" in answer.out
    assert "a plain paired test would have missed 1 of 2" in answer.out


def test_table_says_who_caught_what(answer):
    rows = [line for line in answer.out.splitlines() if "vllm#54975" in line]

    assert 1 == len(rows)
    assert "wrong-refill-target" in rows[0]
    assert "fails" in rows[0]


def test_what_cannot_run_is_listed_and_not_counted(answer):
    assert "reload-misses-master: needs a reload step" in answer.out
    assert "1 not yet runnable" in answer.out


def test_table_is_recorded_beside_the_cases(answer):
    table = json.loads((answer.session / "kill_table.json").read_text())
    manifest = json.loads((answer.session / "manifest.json").read_text())

    lines = {line["name"]: line for line in table["lines"]}
    assert set(NAMES) == set(lines)
    assert {"placement", "integrity", "tokens"} <= set(
        lines["wrong-refill-target"]["rows"][0]["objected"]
    )
    assert table["lines"] == manifest["kill_table"]["lines"]
    assert 0 == manifest["outcome"]["exit_code"]
    assert len((answer.session / "cases.jsonl").read_text().splitlines()) == 8


def test_report_shows_the_table_again_from_the_record(answer, tmp_path):
    page = tmp_path / "again.html"

    again = run_harness("report", answer.session, "-o", page)

    assert 0 == again.code, again.err
    assert "2 of 2 defects caught" in again.out
    for text in (page.read_text(), (answer.session / "report.html").read_text()):
        assert "Which judge catches which defect" in text
        assert "2 of 2 defects caught" in text


def test_a_judge_that_is_blind_lets_a_defect_survive(tmp_path):
    answer = run_harness(
        "faults", "offloader-not-installed", "--judge", "tokens", "--json", "-o", tmp_path
    )

    assert 1 == answer.code, answer.err
    (line,) = answer.json["lines"]
    assert not line["is_right"]
    assert line["why"].startswith("survives under v2 uva")


@pytest.mark.parametrize("args", [("no-such-fault",), ("zero-budget", "--judge", "tokenz")])
def test_unknown_name_is_a_usage_error(tmp_path, args):
    answer = run_harness("faults", *args, "-o", tmp_path)

    assert 2 == answer.code
    assert args[-1] in answer.err
    assert not list(tmp_path.iterdir())


def test_list_needs_no_engine():
    answer = run_harness("list", "--faults", "--json")

    names = {fault["name"]: fault for fault in answer.json}
    assert "reload step" == names["reload-misses-master"]["needs"]
    assert ["vllm#54975"] == names["wrong-refill-target"]["seen_in"]
    assert "runner-always-v1" not in names
