"""What counts as caught, as left in peace and as refused; each can be wrong."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.core import Finding, Verdict
from harness.faults import FAULTS, Fault
from harness.triage.faultcases import describe_doubt, plan_trials
from harness.triage.faulty_tests import FAULTY_TESTS
from harness.triage.rows import build_line, build_test_line, plain_test_passes
from tests.builders import baseline_run, build_case, build_output, build_result, target_run

WAITING = Fault(name="waiting", summary="it cannot run", killed_by=("tokens",), needs="reload step")
SAME = (Finding(judge="tokens", verdict=Verdict.PASS, summary="equal"),)


def say(**words):
    verdicts = {"fail": Verdict.FAIL, "vacuous": Verdict.VACUOUS, "pass": Verdict.PASS}
    return tuple(
        Finding(judge=judge, verdict=verdicts[word], summary=f"{judge} says {word}")
        for judge, word in words.items()
    )


def line_of(name, findings, judges=()):
    """`findings`: a function of a trial."""
    fault = name if isinstance(name, Fault) else FAULTS.get(name)
    trials = plan_trials(fault)
    results = {t.planned.case.case_id: build_result(t.planned.case, findings(t)) for t in trials}
    return build_line(fault, trials, results, {}, judges)


def test_two_judges_must_catch_what_two_are_named_for():
    line = line_of("decode-bypasses-hook", lambda _t: say(tokens="fail", integrity="fail"))
    assert line.is_right

    line = line_of("decode-bypasses-hook", lambda _t: say(tokens="fail", integrity="pass"))
    assert line.why == "only tokens catches it under v1 uva-copy"


def test_the_two_may_come_from_two_schedules():
    def by_schedule(trial):
        return say(ordering="fail", integrity="pass" if trial.schedule == "in_order" else "fail")

    assert line_of("no-wait-for-copy", by_schedule).is_right


def test_one_schedule_without_an_objection_is_a_survival():
    def by_schedule(trial):
        word = "pass" if trial.schedule == "in_order" else "fail"
        return say(ordering=word, integrity=word)

    assert line_of("no-wait-for-copy", by_schedule).why == "survives under v1 prefetch"


def test_one_runner_without_an_objection_is_a_survival():
    line = line_of(
        "pin-flag-ignored", lambda t: say(effect="vacuous" if t.runner == "v1" else "pass")
    )
    assert line.why == "survives under v2 prefetch"


def test_a_judge_that_is_not_named_does_not_count():
    assert "survives" in line_of("pin-flag-ignored", lambda _t: say(memory="fail")).why


def test_a_run_that_broke_is_not_a_kill():
    broken = (Finding(judge="run", verdict=Verdict.ERROR, summary="the target crashed"),)
    line = line_of("pin-flag-ignored", lambda _t: broken)
    assert line.why == "v1 prefetch could not be judged: the target crashed"


def test_only_judges_that_were_asked_must_catch():
    only = lambda _t: say(tokens="fail")  # noqa: E731
    assert line_of("decode-bypasses-hook", only, ("tokens",)).is_right


def test_an_objection_to_an_equivalent_is_a_false_alarm():
    line = line_of("copies-in-chunks", lambda _t: say(ordering="fail", tokens="pass"))
    assert line.why == "false alarm of ordering under v1 prefetch: ordering says fail"
    assert line_of("copies-in-chunks", lambda _t: SAME).is_right


def test_the_one_stated_objection_must_come_in_its_words():
    words = Finding(judge="placement", verdict=Verdict.FAIL, summary="target: other layers are")
    assert line_of("other-layers-same-bytes", lambda _t: (words,)).is_right

    line = line_of("other-layers-same-bytes", lambda _t: say(placement="fail"))
    assert line.why.startswith("false alarm of placement")
    line = line_of("other-layers-same-bytes", lambda _t: SAME)
    assert line.why == "placement says nothing under v1 prefetch"


def test_what_cannot_run_is_neither_right_nor_tried():
    line = line_of(WAITING, lambda _t: SAME)
    assert (line.is_right, line.rows, line.why) == (False, (), "needs reload step")


def test_a_fault_of_a_lifecycle_is_tried_on_that_lifecycle():
    trials = plan_trials(FAULTS.get("patch-v2-not-forwarded"))

    assert {t.planned.case.workload.name for t in trials} == {"patch"}
    assert {t.planned.target_key.workload.name for t in trials} == {"patch"}
    assert {t.runner for t in trials} == {"v2"}


@pytest.mark.parametrize("test", [t for t in FAULTY_TESTS if t.build], ids=lambda t: t.name)
def test_a_faulty_test_is_refused_only_by_its_judge_in_its_words(test):
    case = test.build().case
    test = replace(test, tamper=None)
    result = build_result(case, say(effect="pass"))
    assert build_test_line(test, result, {}, ()).why == "not refused"
    word = Finding(judge=test.refused_by, verdict=Verdict.VACUOUS, summary=f"so {test.says}")
    assert build_test_line(test, replace(result, findings=(word,)), {}, ()).is_right
    loud = replace(word, verdict=Verdict.FAIL)
    assert not build_test_line(test, replace(result, findings=(loud,)), {}, ()).is_right


def test_a_plain_paired_test_sees_five_tokens_of_the_first_prompt():
    case = build_case()

    def passes(*answers):
        outputs = [build_output(i, a) for i, a in enumerate(answers)]
        return plain_test_passes(
            baseline_run(case, outputs=[build_output(i, range(8)) for i in range(2)]),
            target_run(case, outputs=outputs),
        )

    assert passes(range(8), range(8))
    assert passes((0, 1, 2, 3, 4, 9, 9, 9), (9, 9))
    assert not passes((0, 1, 2, 3, 9), range(8))
    assert plain_test_passes(None, target_run(case)) is None


def test_a_fault_on_a_model_or_workload_where_it_is_not_known_to_show_is_doubted():
    def doubts(name, model="tiny-llama", workload="default"):
        case = build_case()
        work = replace(case.workload, name=workload, model=replace(case.workload.model, name=model))
        planned = SimpleNamespace(case=replace(case, workload=work))
        return describe_doubt([name], SimpleNamespace(cases=(planned,)))

    (line,) = doubts("tower-never-offloaded")
    assert "shows" not in line
    assert "known to show with model seeded-llama-tower only" in line
    assert [] == doubts("tower-never-offloaded", model="seeded-llama-tower")
    (line,) = doubts("reload-misses-master", workload="patch")
    assert "workload reload-changed only" in line
    assert [] == doubts("reload-misses-master", workload="reload-changed")
    assert [] == doubts("offloader-not-installed", model="any", workload="any")
