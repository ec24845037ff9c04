"""Token strips: the window holds the first difference, and a plain test is told as it is."""

from dataclasses import replace

import pytest

from harness.core import Divergence, Finding, Verdict
from harness.report.cell import lead_sentence, view_cell
from harness.report.tokens import plain_pair_is_equal, view_tokens

from .sample_runs import WORKLOAD, make_outputs, sides
from .sample_session import build_sample, find, find_early


@pytest.fixture(scope="module")
def mixed():
    return build_sample()


def test_equal_answers_show_prompt_0_only(mixed):
    result = find(mixed, "PASS")
    view = view_cell(result, mixed.runs, "x").tokens
    assert view.headline == "8 answers equal, token for token (512 tokens)"
    assert [s.label for s in view.strips] == ["prompt 0"]
    assert view.candidates == ()


def test_differing_answers_start_with_the_one_the_judge_named(mixed):
    view = view_cell(find_early(mixed), mixed.runs, "x").tokens
    assert [s.label for s in view.strips] == ["prompt 2", "prompt 5", "prompt 6"]
    assert "margin 1.8 nats: not a near-tie" in view.headline
    assert [m.differs for m in view.marks] == [i in (2, 5, 6) for i in range(8)]


@pytest.mark.parametrize("first", [0, 3, 41, 63])
def test_window_holds_the_first_difference(mixed, first):
    left, right = sides(outputs=make_outputs(WORKLOAD, wrong=(1,), first=first))
    strip = view_tokens(mixed.results[1], left, right).strips[0]
    assert strip.first_idx == first
    assert strip.tokens[first - strip.start_idx].differs
    assert not any(t.differs for t in strip.tokens[: first - strip.start_idx])
    assert strip.start_idx + len(strip.tokens) + strip.num_after == 64


def test_a_shorter_answer_differs_where_it_ends(mixed):
    left, right = sides()
    short = replace(right.outputs[0], token_ids=right.outputs[0].token_ids[:10], logprobs=None)
    strip = view_tokens(
        mixed.results[1], left, replace(right, outputs=(short, *right.outputs[1:]))
    ).strips[0]
    assert strip.first_idx == 10
    assert strip.tokens[10 - strip.start_idx].target == "end"


def test_margin_is_left_out_when_the_judge_spoke_of_another_request(mixed):
    left, right = sides(outputs=make_outputs(WORKLOAD, wrong=(1,)))
    other = Divergence(request_idx=5, token_idx=0, expected=1, actual=2, margin=9.9)
    word = Finding(judge="tokens", verdict=Verdict.FAIL, summary="x", divergence=other)
    view = view_tokens(replace(mixed.results[1], findings=(word,)), left, right)
    assert "margin" not in view.headline


def test_answers_without_common_ids_are_matched_by_position(mixed):
    left, right = sides(outputs=make_outputs(WORKLOAD, wrong=(4,)))
    renamed = tuple(replace(o, request_id=f"x{i}") for i, o in enumerate(right.outputs))
    view = view_tokens(mixed.results[1], left, replace(right, outputs=renamed))
    assert [s.label for s in view.strips] == ["prompt 4"]


def test_a_near_tie_that_passes_is_not_called_the_same_output(mixed):
    tie = Divergence(request_idx=0, token_idx=3, expected=1, actual=2, margin=0.01, near_tie=True)
    word = Finding(judge="tokens", verdict=Verdict.PASS, summary="x", divergence=tie)
    result = replace(mixed.results[1], verdict=Verdict.PASS, findings=(word,))
    assert lead_sentence(result) == "Proven: same output up to a near-tie"


def test_log_probabilities_that_are_no_numbers_draw_no_bar(mixed):
    left, right = sides(outputs=make_outputs(WORKLOAD, wrong=(1,)))
    answer = right.outputs[1]
    nan = tuple(tuple(float("nan") for _ in row) for row in answer.logprobs.top)
    broken = replace(answer, logprobs=replace(answer.logprobs, top=nan))
    outputs = (right.outputs[0], broken, *right.outputs[2:])
    view = view_tokens(mixed.results[1], left, replace(right, outputs=outputs))
    assert any(c.target == "nan" and c.target_percent == 0 for c in view.candidates)


def test_candidates_show_both_sides_at_the_first_difference(mixed):
    view = view_cell(find(mixed, "FAIL"), mixed.runs, "x").tokens
    chosen = {c.chosen_by: c for c in view.candidates if c.chosen_by}
    assert chosen["baseline"].baseline == "-0.200"
    assert chosen["target"].target == "-0.300"


def test_text_is_split_where_the_answers_part(mixed):
    strip = view_cell(find(mixed, "FAIL"), mixed.runs, "x").tokens.strips[0]
    assert strip.common_text == "the cat sat on the mat and saw "
    assert (strip.baseline_text, strip.target_text) == ("the moon.", "a dog.")


@pytest.mark.parametrize(("first", "equal"), [(4, False), (5, True), (40, True)])
def test_plain_test_sees_only_five_tokens_of_prompt_0(first, equal):
    left, right = sides(outputs=make_outputs(WORKLOAD, wrong=(0,), first=first))
    assert plain_pair_is_equal(left, right) is equal


def test_plain_test_does_not_see_another_prompt():
    left, right = sides(outputs=make_outputs(WORKLOAD, wrong=(1, 2, 3), first=0))
    assert plain_pair_is_equal(left, right) is True


def test_plain_test_has_no_word_without_output():
    left, right = sides(outputs=())
    assert plain_pair_is_equal(left, right) is None
    assert plain_pair_is_equal(left, None) is None
