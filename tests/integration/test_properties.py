"""`harness properties`: generated examples hold; a planted fault is found, made small, replayed."""

import json
import shlex
import subprocess
import sys

import pytest

from .commandline import ROOT, command, environment, run_harness

NUM_EXAMPLES = 10


@pytest.fixture(scope="module")
def clean():
    return run_harness("properties", "--examples", NUM_EXAMPLES, "--seed", 3, "--json")


@pytest.fixture(scope="module")
def broken():
    return run_harness("properties", "--examples", 60, "--fault", "wrong-refill-target")


def replay_line(answer):
    (line,) = [line for line in answer.out.splitlines() if line.startswith("replay ")]
    return shlex.split(line)[1:]


def test_generated_settings_without_a_fault_hold(clean):
    assert 0 == clean.code, clean.out + clean.err
    assert NUM_EXAMPLES == clean.json["num_examples"]
    assert clean.json["failure"] is clean.json["replay"] is None
    counts = clean.json["counts"]
    assert NUM_EXAMPLES == counts["PASS"] + counts.get("VACUOUS", 0)
    assert counts["PASS"] > NUM_EXAMPLES / 2


def test_wrong_refill_shrinks_to_the_smallest_ring_that_step_does_not_divide(broken):
    assert 1 == broken.code, broken.out + broken.err
    words = replay_line(broken)
    assert ["harness", "properties", "--replay"] == words[:3]
    example = json.loads(words[3])
    assert 3 == example["num_layers"]
    assert {"offload_group_size": 1, "offload_prefetch_step": 2} == example["offload"]
    assert ["wrong-refill-target"] == example["faults"]
    assert "schedule" not in example
    assert "placement  FAIL" in broken.out
    assert "integrity  FAIL" in broken.out


def test_missing_wait_is_seen_even_when_copies_are_in_order():
    answer = run_harness("properties", "--examples", 20, "--fault", "no-wait-for-copy", "--json")

    assert 1 == answer.code, answer.out + answer.err
    failure = answer.json["failure"]
    assert "in_order" == failure["example"]["schedule"]
    assert failure["words"]["ordering"].startswith("FAIL: compute reads slot 0 of layers.0")
    assert failure["words"]["tokens"].startswith("PASS")


def test_printed_command_replays_the_failure_and_records_it(broken, tmp_path):
    words = replay_line(broken)

    child = subprocess.run(
        [*command(*words[1:]), "-o", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment(),
    )

    assert 1 == child.returncode, child.stderr
    assert "3 layers" in child.stdout
    assert "placement  FAIL" in child.stdout
    (session,) = tmp_path.iterdir()
    (case,) = map(json.loads, (session / "cases.jsonl").read_text().splitlines())
    assert shlex.join(words) == case["command"]
    assert (session / "report.html").is_file()


def test_example_in_a_file_is_replayed_and_holds(tmp_path):
    path = tmp_path / "example.json"
    path.write_text('{"num_layers":2,"offload":{"offload_group_size":1}}')

    answer = run_harness("properties", "--replay", path, "--json", "-o", tmp_path / "reports")

    assert 0 == answer.code, answer.out + answer.err
    assert answer.json["holds"]
    assert "PASS" == answer.json["verdict"] == answer.json["expected"]


@pytest.mark.parametrize(
    "args",
    [
        ("--replay", '{"layers":2}'),
        ("--replay", '{"faults":["no-such-fault"]}'),
        ("--replay", "no-such-file.json"),
        ("--replay", "{}", "--fault", "no-wait-for-copy"),
        ("--fault", "no-such-fault"),
        ("--examples", "0"),
    ],
)
def test_what_cannot_be_run_is_a_usage_error(cli, tmp_path, args):
    answer = cli("properties", *args, "-o", tmp_path)

    assert 2 == answer.code
    assert not list(tmp_path.glob("*/cases.jsonl"))


def test_other_verbs_do_not_need_hypothesis():
    code = "import sys, harness.cli.main; print('hypothesis' in sys.modules)"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert "False" == child.stdout.strip()
