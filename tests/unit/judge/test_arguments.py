"""Further engine arguments and further ranks: what was asked for must be what is in effect."""

from dataclasses import replace

import pytest

from harness.core import Verdict
from harness.judge.arguments import check_arguments, same_value
from harness.judge.effect import judge_effect
from tests.builders import UVA, build_case, build_expectation, build_probe, build_run


def asked(arguments):
    """A case whose both sides ask for further engine arguments."""
    case = build_case(UVA)
    sides = {n: replace(getattr(case, n), engine_args=arguments) for n in ("baseline", "target")}
    return replace(case, **sides)


def run_of(case, name, effective=None, **changes):
    setting = getattr(case, name)
    expected = case.expected if name == "target" else case.expected_baseline
    config = {"enforce_eager": True, "model": "toy", **(effective or {})}
    return build_run(setting, expected, effective_config=config, **changes)


def judge(arguments, effective, on_baseline=None):
    case = asked(arguments)
    baseline = run_of(case, "baseline", effective if on_baseline is None else on_baseline)
    return judge_effect(case, baseline, run_of(case, "target", effective))


@pytest.mark.parametrize(
    ("wanted", "found", "word"),
    [
        (64, 64, True),
        (64, 128, False),
        (64, "64", True),
        (0.5, "0.50", True),
        (1, True, True),
        (True, "True", True),
        (False, True, False),
        ("auto", 17, True),
        (None, 17, True),
        (64, None, False),
        ("half", "torch.float16", True),
        ("float16", "torch.bfloat16", False),
        ("XGrammar", "xgrammar", True),
        ("/models/x/", "/models/x", True),
        ("/models/x", "/models/X", False),
        (["b", "a"], ["a", "b"], True),
        (["a"], ["a", "b"], False),
        ([1, 2], ["2", 1.0], True),
        (["a"], "['a']", None),
        ({"mode": 0}, {"mode": 0, "more": 1}, True),
        ({"mode": 0}, {"mode": 1}, False),
        ({"mode": 0}, {"more": 1}, None),
        ({"mode": 0, "x": 1}, {"x": 2}, False),
        ({"mode": 0}, "Config(mode=0)", None),
        ({"mode": 0}, 3, False),
        (3, [3], False),
        (3, {"mode": 3}, None),
        ("NONE", "none", True),
        ("VLLM_COMPILE", 3, None),
        (16, "native", False),
        (4096, "auto", False),
        (True, "none", False),
        ("x", True, False),
        (3, "VLLM_COMPILE", None),
        ("x", None, False),
    ],
)
def test_values_are_equal_however_they_are_spelled(wanted, found, word):
    assert same_value(wanted, found) is word


def test_another_value_in_effect_is_vacuous_and_both_are_named():
    finding = judge({"max_model_len": 64}, {"max_model_len": 128})
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary.startswith("max_model_len=64 was asked for, 128 is in effect: target")


def test_another_value_on_the_baseline_alone_is_vacuous_too():
    finding = judge({"seed": 1}, {"seed": 1}, on_baseline={"seed": 2})
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == "seed=1 was asked for, 2 is in effect: baseline"


def test_arguments_in_effect_pass_with_a_row_each():
    finding = judge({"seed": 1, "max_model_len": 64}, {"seed": 1, "max_model_len": 64})
    assert finding.verdict is Verdict.PASS
    rows = {row["name"]: row for row in finding.evidence["rows"]}
    assert rows["seed"] == {
        "name": "seed",
        "asked": 1,
        "asked_baseline": 1,
        "baseline": 1,
        "target": 1,
        "ok": True,
    }
    assert finding.evidence["unchecked_arguments"] == {"baseline": [], "target": []}


def test_an_argument_the_engine_does_not_tell_is_listed_as_not_checked():
    finding = judge({"seed": 1}, {})
    assert finding.verdict is Verdict.PASS
    assert finding.evidence["unchecked_arguments"] == {"baseline": ["seed"], "target": ["seed"]}
    (row,) = (r for r in finding.evidence["rows"] if r["name"] == "seed")
    assert row["ok"] is None


def test_checks_come_by_name():
    setting = asked({"b": 1, "a": 2}).target
    probe = build_probe(setting, build_expectation(setting))
    assert [check.name for check in check_arguments(setting, probe)] == ["a", "b"]


def spread(case, *changes, arguments=("baseline", "target")):
    """Both runs with a further rank for each of `changes`, applied to the target's."""
    runs = {}
    for name in arguments:
        run = run_of(case, name, {"tensor_parallel_size": len(changes) + 1})
        ranks = [
            replace(run.probe, rank=i, **(c if name == "target" else {}))
            for i, c in enumerate(changes, 1)
        ]
        runs[name] = replace(run, rank_probes=tuple(ranks))
    return runs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runner_class": "engine.v1.X"}, "rank 2 runs engine.v1.X, rank 0 runs engine.v2"),
        ({"offloader_class": "NoopOffloader"}, "rank 2 has NoopOffloader, rank 0 has UVAOffloader"),
        ({"params": ()}, "rank 2 holds no offloaded parameter, rank 0 does"),
        ({"drift": ("a.b",)}, "rank 2 could not be read: a.b not found"),
        ({"reported_offloaded_bytes": 7}, "rank 2 has an offloader that miscounts: 7 against"),
        (
            {"effective_config": {"model": "elsewhere", "enforce_eager": True}},
            "rank 2 has model=elsewhere, rank 0 has",
        ),
    ],
)
def test_a_further_rank_that_runs_something_else_is_vacuous(changes, words):
    case = asked({"tensor_parallel_size": 3})
    finding = judge_effect(case, **spread(case, {}, changes))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary.startswith(words)
    (row,) = (r for r in finding.evidence["rows"] if r["name"] == "all ranks")
    assert (row["asked"], row["baseline"], row["target"], row["ok"]) == (3, 3, 2, False)


def test_ranks_that_agree_pass_with_a_row():
    case = asked({"tensor_parallel_size": 3})
    finding = judge_effect(case, **spread(case, {}, {}))
    assert finding.verdict is Verdict.PASS
    (row,) = (r for r in finding.evidence["rows"] if r["name"] == "all ranks")
    assert (row["asked"], row["target"], row["ok"]) == (3, 3, True)


def test_ranks_that_were_never_read_are_not_proven():
    case = asked({"tensor_parallel_size": 2, "pipeline_parallel_size": 2})
    both = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    finding = judge_effect(case, run_of(case, "baseline", both), run_of(case, "target", both))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary.startswith("only 1 of 4 ranks read: target")


def test_a_single_rank_has_no_row_of_its_own():
    assert "all ranks" not in {r["name"] for r in judge({}, {}).evidence["rows"]}
