"""accelerate's forms of offload in its own interpreter, and its known-bad arms."""

from pathlib import Path

import pytest

MATRICES = Path(__file__).parent / "matrices"
JUDGES = ("effect", "placement", "memory", "integrity", "tokens")
DAMAGED, SWAPPED, LEFT = "disk-copy-damaged", "weights-of-another-layer", "weights-left-behind"


@pytest.fixture(scope="module")
def python(interpreter):
    return interpreter("accelerate")


@pytest.fixture(scope="module")
def arms(python, plan_faults, run_cases, named):
    """`arms(fault)` -> {cell: result}."""
    file = MATRICES / "accelerate_known_bad.yaml"
    session = run_cases(plan_faults(file, [DAMAGED, SWAPPED, LEFT], [python]))
    return lambda fault: named(session.results, fault)


def test_every_form_passes_by_every_judge_in_accelerates_own_interpreter(python, run_matrix):
    done = run_matrix(MATRICES / "accelerate.yaml", "--python", python)

    assert 0 == done.code, done.answer["outcome"]["sentence"]
    assert {"ok"} == set(done.answer["outcome"]["controls"].values())
    cases = done.results("case")
    assert 12 == len(cases), "six forms of two models, one of them with tied weights"
    for result in cases:
        said = {f.judge: f.verdict.value for f in result.findings}
        assert dict.fromkeys(JUDGES, "PASS") == said, result.case.anchor
        assert python == result.case.target.python
        assert result.case.target.release


def test_a_convolutions_weight_that_its_parent_reads_is_right_in_every_form(python, run_matrix):
    done = run_matrix(MATRICES / "accelerate_conv.yaml", "--python", python)

    assert 0 == done.code, done.answer["outcome"]["sentence"]
    cases = done.results("case")
    assert 6 == len(cases)
    for result in cases:
        said = {f.judge: f.verdict.value for f in result.findings}
        assert dict.fromkeys(JUDGES, "PASS") == said, result.case.anchor


def test_an_empty_map_is_vacuous_though_every_token_is_equal(python, run_matrix):
    done = run_matrix(MATRICES / "accelerate_empty_map.yaml", "--python", python)

    assert 4 == done.code
    (result,) = done.results("case")
    said = {f.judge: f.verdict.value for f in result.findings}
    assert ("VACUOUS", "VACUOUS", "PASS") == (
        result.verdict.value, said["effect"], said["tokens"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "forms", "judges"),
    [
        (DAMAGED, 2, {"integrity", "tokens"}),
        (SWAPPED, 3, {"integrity", "tokens"}),
        (LEFT, 3, {"memory", "placement"}),
    ],
)
def test_a_planted_defect_fails_by_the_judges_that_must_see_it(arms, fault, forms, judges):
    tried = arms(fault)

    assert forms == len(tried)
    for cell, result in tried.items():
        objecting = {f.judge for f in result.findings if f.verdict.value == "FAIL"}
        assert "FAIL" == result.verdict.value, (cell, result.findings)
        assert objecting >= judges if fault != LEFT else objecting & judges, (cell, result.findings)
