from dataclasses import replace

import pytest

from harness.core import OrderingTrace, Race, Verdict
from harness.judge.ordering import judge_ordering
from tests.builders import PREFETCH, UVA, baseline_run, build_case, noop_run, target_run

TRACE = OrderingTrace(num_work=100, num_copies=20, num_checked=300, num_pool_checked=90)
RACE = Race(
    kind="write-read",
    resource="slot 0 of layers.3.mlp.down_proj.weight",
    first_site="prefetch.3.mlp.down_proj.weight",
    second_site="model.layers.3.mlp",
    first_stream="copy",
    second_stream="default",
    missing="compute reads slot 0 of layers.3 without waiting for copy 7",
    count=12,
)


def case_of(offload=PREFETCH, instruments=("ordering",)):
    case = build_case(offload)
    return replace(
        case,
        baseline=replace(case.baseline, instruments=instruments),
        target=replace(case.target, instruments=instruments),
    )


BARE = replace(TRACE, num_copies=0, num_pool_checked=0)
"""Of a side without offload: its KV cache and state are checked all the same."""


def judge(case, left=BARE, right=TRACE):
    return judge_ordering(case, baseline_run(case, ordering=left), target_run(case, ordering=right))


def test_all_in_order_passes_and_says_how_much_was_checked():
    found = judge(case_of())

    assert found.verdict is Verdict.PASS
    assert "300 pairs" in found.summary
    assert "100 pieces of work, 20 of them copies" in found.summary


def test_a_race_fails_with_the_missing_edge_and_keeps_every_cause():
    other = replace(RACE, missing="compute reads slot 1 of layers.4 without waiting for copy 9")
    found = judge(case_of(), right=replace(TRACE, races=(RACE, other)))

    assert found.verdict is Verdict.FAIL
    assert found.summary == f"{RACE.missing}, seen 12 times (and 1 more)"
    assert found.evidence["missing"] == [RACE.missing, other.missing]
    assert [r["resource"] for r in found.evidence["target"]["races"]] == [RACE.resource] * 2
    assert found.evidence["cause"] == "no order between copy and default"


def test_a_race_in_the_baseline_fails_and_says_so():
    found = judge(case_of(), left=replace(TRACE, races=(RACE,)))

    assert found.verdict is Verdict.FAIL
    assert "(in the baseline)" in found.summary


def test_it_abstains_when_nobody_asked():
    assert judge(case_of(instruments=("poison",)), None, None) is None


@pytest.mark.parametrize(
    ("side", "trace", "words"),
    [
        ("right", None, "missing on the target"),
        ("left", None, "missing on the baseline"),
        ("right", replace(TRACE, num_work=0, num_checked=0), "no launch was seen"),
        ("right", replace(TRACE, num_copies=0), "no copy was seen on the target"),
        ("right", replace(TRACE, num_pool_checked=0), "no pair of accesses to the buffer pool"),
    ],
)
def test_a_recording_without_content_proves_nothing(side, trace, words):
    found = judge(case_of(), **{side: trace})

    assert found.verdict is Verdict.VACUOUS
    assert words in found.summary


def test_only_prefetch_needs_copies_into_a_pool():
    assert judge(case_of(UVA), right=BARE).verdict is Verdict.PASS


IDLE = replace(BARE, num_checked=0)
"""Of an engine on which everything is done at once: work, and nothing that could race."""


def test_it_abstains_where_nothing_could_race():
    assert judge(case_of(UVA), left=IDLE, right=IDLE) is None


@pytest.mark.parametrize(("left", "right"), [(BARE, IDLE), (IDLE, BARE)])
def test_one_side_that_could_race_is_judged(left, right):
    assert judge(case_of(UVA), left=left, right=right).verdict is Verdict.PASS


def test_it_does_not_abstain_where_weights_are_copied_ahead_of_use():
    found = judge(case_of(PREFETCH), left=IDLE, right=replace(IDLE, num_copies=20))

    assert found.verdict is Verdict.VACUOUS
    assert "no pair of accesses to the buffer pool was checked" in found.summary


@pytest.mark.parametrize(
    ("trace", "words"), [(None, "missing"), (replace(IDLE, num_work=0), "no launch was seen")]
)
def test_a_recording_that_saw_nothing_is_no_reason_to_abstain(trace, words):
    found = judge(case_of(UVA), left=IDLE, right=trace)

    assert found.verdict is Verdict.VACUOUS
    assert words in found.summary


def test_a_race_is_told_also_where_nothing_is_copied_ahead():
    found = judge(case_of(UVA), left=IDLE, right=replace(IDLE, races=(RACE,)))

    assert found.verdict is Verdict.FAIL


def test_a_missing_recording_of_an_offload_that_never_took_effect_shares_its_cause():
    case = case_of()
    found = judge_ordering(case, baseline_run(case, ordering=TRACE), noop_run(case, ordering=None))

    assert found.verdict is Verdict.VACUOUS
    assert "offload never took effect" in found.evidence["cause"]
