"""`harness compare`: two settings of one model, from two strings."""

import harness

from .commandline import run_harness


def compare(tmp_path, *args):
    return run_harness("compare", "tiny-llama", "--workload", "short", "-o", tmp_path, *args)


def test_offload_against_none_passes(tmp_path):
    answer = compare(tmp_path, "--target", "--cpu-offload-gb 1", "--json")

    assert (0, "") == (answer.code, answer.err)
    verdicts = {c["role"]: c["verdict"] for c in answer.json["cases"]}
    assert {"null": "PASS", "control": "FAIL", "case": "PASS"} == verdicts
    assert (answer.session / "report.html").is_file()


def test_variables_stand_before_the_flags_of_a_side(tmp_path):
    runner = "VLLM_USE_V2_MODEL_RUNNER=1"
    answer = compare(
        tmp_path,
        "--baseline", runner,
        "--target", f"{runner} VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY=1 --cpu-offload-gb 1",
    )  # fmt: skip

    assert 0 == answer.code, answer.out + answer.err
    assert "✓ PASS         tiny-llama/v2-uva-gb1-pin0-eager" in answer.out


def test_the_command_in_the_record_runs_the_same_again(tmp_path, cli):
    args = ["--target", "--offload-group-size 2 --offload-prefetch-step 3"]
    answer = compare(tmp_path, *args, "--json")

    shown = cli("show", "g2n1s3", "--run", answer.session, "--json") if answer.code == 0 else answer
    commands = {c["command"] for c in answer.json["cases"]}
    assert 0 == answer.code, answer.err
    (command,) = commands
    assert command.startswith("harness compare tiny-llama")
    assert "'--offload-group-size 2 --offload-prefetch-step 3'" in command
    assert 2 == shown.code or command == shown.json["command"]


def test_a_difference_in_several_axes_is_attributed(tmp_path):
    dummy = "--load-format dummy --seed"
    answer = compare(
        tmp_path, "--baseline", f"{dummy} 1", "--target", f"{dummy} 2 --cpu-offload-gb 1"
    )

    assert 1 == answer.code, answer.out + answer.err
    assert "Attributed: the difference comes with engine_args (" in answer.out
    (note,) = harness.load_run(answer.session).manifest["attributed"].values()
    assert f"Attributed: {note}" in answer.out


def test_two_sides_without_offload_still_show_that_they_can_fail(tmp_path):
    answer = compare(tmp_path, "--json")

    assert 4 == answer.code, answer.out + answer.err
    assert ["case", "control", "null"] == sorted(c["role"] for c in answer.json["cases"])
    assert {"ok"} == set(answer.json["outcome"]["controls"].values())
