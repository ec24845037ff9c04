"""`harness faults`: the kill table, printed, recorded and shown."""

import json

import pytest

from .commandline import run_harness

NAMES = ("wrong-refill-target", "offloader-not-installed", "other-slot-numbers", "zero-budget",
         "patch-v2-not-forwarded")  # fmt: skip


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    return run_harness("faults", *NAMES, "-o", tmp_path_factory.mktemp("reports"))


def test_all_as_it_must_be_exits_with_0(answer):
    assert 0 == answer.code, answer.out + answer.err
    assert "3 of 3 defects caught on every runner and mode" in answer.out
    assert "a plain paired test would have missed 2 of 3" in answer.out


def test_table_says_who_caught_what(answer):
    rows = [line for line in answer.out.splitlines() if "vllm#54975" in line]

    assert 1 == len(rows)
    assert "wrong-refill-target" in rows[0]
    assert "fails" in rows[0]


def test_a_fault_of_a_lifecycle_is_caught_after_its_step(answer):
    lines = json.loads((answer.session / "kill_table.json").read_text())["lines"]
    (line,) = [line for line in lines if line["name"] == "patch-v2-not-forwarded"]

    assert ["v2"] * 3 == [row["runner"] for row in line["rows"]]
    for row in line["rows"]:
        assert row["objected"]["integrity"].startswith("after step 1 (apply_sparse_weight_patches)")


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
    assert len((answer.session / "cases.jsonl").read_text().splitlines()) == 11


def test_report_shows_the_table_again_from_the_record(answer, tmp_path):
    page = tmp_path / "again.html"

    again = run_harness("report", answer.session, "-o", page)

    assert 0 == again.code, again.err
    assert "3 of 3 defects caught" in again.out
    for text in (page.read_text(), (answer.session / "report.html").read_text()):
        assert "Which judge catches which defect" in text
        assert "3 of 3 defects caught" in text


def test_report_as_json_says_which_runners_really_ran(answer, tmp_path):
    again = run_harness("report", answer.session, "--json", "-o", tmp_path / "page.html")

    rows = {(row["workload"], row["mode"]): row for row in again.json["coverage"]}
    assert ["v1", "v2"] == rows["faults", "prefetch"]["ran"]
    assert ["v2"] == rows["patch", "uva-copy"]["ran"]
    assert [] == rows["patch", "uva-copy"]["never_ran"]


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
    assert "" == names["reload-misses-master"]["needs"]
    assert "reload-changed" == names["reload-misses-master"]["workload"]
    assert ["vllm#54975"] == names["wrong-refill-target"]["seen_in"]
    assert "runner-always-v1" not in names
