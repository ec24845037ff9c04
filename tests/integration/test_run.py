"""`harness run`: launches, judges, records, reports, and ends with the right code."""

import json
import shlex
import xml.etree.ElementTree as ET

import harness
from harness.cli.run import brief

from .commandline import run_harness


def test_every_cell_has_a_line_and_is_proven(recorded, cells):
    assert 0 == recorded.code, recorded.out + recorded.err
    assert "" == recorded.err
    lines = recorded.out.splitlines()
    for cell in cells:
        (line,) = [x for x in lines if f" {cell} " in x]
        assert line.startswith("✓ PASS")
    assert "small matrix: tiny-llama in float32; 5 cells and 3 controls from 9 runs" in lines[0]
    assert any(x.startswith("All 5 cells proven:") for x in lines)


def test_lines_of_a_log_are_not_cut(recorded):
    assert "…" not in recorded.out


def test_the_guards_come_first_and_behave(recorded):
    text = recorded.out

    assert "✓ CAUGHT       tiny-llama/control-v1-uva-gb1-pin1-eager!host-copy-damaged" in text
    assert "3 controls behaved" in text
    first = json.loads((recorded.session / "cases.jsonl").read_text().splitlines()[0])
    assert "null" == first["case"]["role"]


def test_the_record_loads_as_a_frame_in_one_call(recorded, cells):
    session = harness.load_run(recorded.session)
    frame = session.frame()

    assert 8 == len(frame)
    assert set(cells) <= {r.case.anchor for r in session.results}
    assert () == session.problems
    assert session.outcome.passed


def test_pages_and_junit_stand_beside_the_record(recorded, cells):
    html = (recorded.session / "report.html").read_text()
    cases = ET.parse(recorded.session / "junit.xml").iter("testcase")

    assert all(cell in html for cell in cells)
    axes = {p.get("name") for case in cases for p in case.iter("property")}
    assert {"runner", "backend", "pin"} <= axes


def test_json_is_one_document_with_the_same_verdicts(small_matrix, tmp_path, cells):
    answer = run_harness(
        "run", "--matrix", small_matrix, "-o", tmp_path / "out", "--cell", cells[3], "--json",
        "--junit", tmp_path / "x" / "j.xml", "--report", tmp_path / "x" / "r.html", "-j", 1,
    )  # fmt: skip

    assert (0, "") == (answer.code, answer.err)
    assert {"null", "control", "case"} == {c["role"] for c in answer.json["cases"]}
    (case,) = [c for c in answer.json["cases"] if c["role"] == "case"]
    assert (cells[3], "PASS") == (case["cell"], case["verdict"])
    assert 0 == answer.json["outcome"]["exit_code"]
    assert (tmp_path / "x" / "j.xml").is_file()
    assert (tmp_path / "x" / "r.html").is_file()
    assert answer.session.parent == tmp_path / "out"


def test_a_fault_that_breaks_the_outputs_fails(small_matrix, tmp_path, cells):
    answer = run_harness(
        "run", "--matrix", small_matrix, "-o", tmp_path / "out", "-k", "v1-prefetch",
        "--fault", "wrong-refill-target",
    )  # fmt: skip

    assert 1 == answer.code, answer.out + answer.err
    bad = f"{cells[2]}!wrong-refill-target"
    assert f"✕ FAIL         {bad}" in answer.out
    assert f"look    harness show '{bad}' --run {answer.session}" in answer.out
    (look,) = [line for line in answer.out.splitlines() if line.startswith("look ")]
    shown = run_harness(*shlex.split(look)[2:])
    assert (0, "") == (shown.code, shown.err)
    assert bad in shown.out


def test_a_refused_setting_is_unsupported_with_its_reason(tmp_path):
    matrix = tmp_path / "graphs.yaml"
    matrix.write_text(
        "models: [tiny-llama]\nworkload: short\nengine_args: {device: cuda}\naxes:\n"
        "  runner: [v2]\n  enforce_eager: [false]\n  offload: [{cpu_offload_gb: 1}]\n"
    )

    answer = run_harness("run", "--matrix", matrix, "-o", tmp_path / "out", "--json")

    assert 5 == answer.code, answer.out + answer.err
    (case,) = [c for c in answer.json["cases"] if c["role"] == "case"]
    assert "UNSUPPORTED" == case["verdict"]
    assert any("device='simulated' only" in f for f in case["findings"].values())


def test_cells_without_support_are_set_apart_and_the_rest_is_proven_with_graphs(tmp_path):
    matrix = tmp_path / "graphs.yaml"
    matrix.write_text(
        "models: [tiny-llama]\nworkload: short\naxes:\n  enforce_eager: [false, true]\n"
        "  server: [false, true]\n  runner: [v2]\n  offload: [{cpu_offload_gb: 1, uva: false}]\n"
    )

    answer = run_harness("run", "--matrix", matrix, "-o", tmp_path / "out", "--json")

    assert 0 == answer.code, answer.out + answer.err
    cases = [c for c in answer.json["cases"] if c["role"] != "null"]
    verdicts = {c["cell"].split("pin1-")[-1]: c["verdict"] for c in cases}
    caught = {n: v for n, v in verdicts.items() if n.endswith("!host-copy-damaged")}
    assert caught
    assert {"FAIL"} == set(caught.values())
    assert {
        "graph": "PASS", "eager": "PASS", "graph-server": "UNSUPPORTED",
        "eager-server": "UNSUPPORTED",
    } == {n: v for n, v in verdicts.items() if n not in caught}  # fmt: skip
    assert "the embedded engine is no server" in answer.json["outcome"]["sentence"]
    assert not list((answer.session / "runs").glob("*server*"))


def test_a_stand_in_is_named_in_every_output(tmp_path):
    asked = "hmellor/tiny-random-LlamaForCausalLM"
    matrix = tmp_path / "one.yaml"
    matrix.write_text(
        f"models: [{asked}]\nworkload: short\naxes:\n  runner: [v2]\n"
        "  offload: [{cpu_offload_gb: 1}]\n"
    )
    named = f"tiny-llama (stand-in for {asked})"

    answer = run_harness("run", "--matrix", matrix, "-o", tmp_path / "out")
    shown = run_harness("show", "/v2-uva-gb1-pin1-eager", "--run", answer.session)

    assert 0 == answer.code, answer.out + answer.err
    lines = [line for line in answer.out.splitlines() if line.startswith(("✓", "✕"))]
    assert 3 == len(lines)
    assert all(f"(stand-in for {asked})" in line for line in lines)
    properties = ET.parse(answer.session / "junit.xml").iter("property")
    assert asked in [p.get("value") for p in properties if p.get("name") == "stand_in_for"]
    session = harness.load_run(answer.session)
    assert {asked} == set(session.frame()["stand_in_for"])
    assert {asked} == set(session.frame()["axis_stand_in_for"])
    assert {named} == {brief(r)["model"] for r in session.results}
    assert named in (answer.session / "report.html").read_text()
    assert named in shown.out
