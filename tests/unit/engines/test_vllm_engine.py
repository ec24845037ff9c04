"""What of the vLLM adapter needs no vLLM: answers and refusals."""

from types import SimpleNamespace

import pytest

from harness.core import Logprobs
from harness.engines.vllm.answers import first_reason, to_logprobs, to_output


def logprob(value, rank):
    return SimpleNamespace(logprob=value, rank=rank, decoded_token=None)


def test_candidates_come_best_first_whatever_order_they_arrive_in():
    row = {7: logprob(-2.0, 3), 5: logprob(-0.5, 1), 6: logprob(-1.0, 2)}

    found = to_logprobs([6], [row])

    assert Logprobs(chosen=(-1.0,), top_token_ids=((5, 6, 7),), top=((-0.5, -1.0, -2.0),)) == found


def test_a_chosen_token_beyond_the_top_is_kept_behind_them():
    row = {9: logprob(-8.0, 400), 5: logprob(-0.5, 1)}

    found = to_logprobs([9], [row])

    assert ((-8.0,), ((5, 9),)) == (found.chosen, found.top_token_ids)


def test_each_position_has_its_own_row():
    rows = [{1: logprob(-0.1, 1)}, {2: logprob(-0.2, 1), 3: logprob(-0.3, 2)}]

    found = to_logprobs([1, 3], rows)

    assert ((-0.1, -0.3), ((1,), (2, 3))) == (found.chosen, found.top_token_ids)


@pytest.mark.parametrize("rows", [None, []])
def test_without_rows_there_are_no_logprobs(rows):
    assert to_logprobs([1], rows) is None


def test_fewer_rows_than_tokens_are_an_error():
    with pytest.raises(ValueError, match="zip"):
        to_logprobs([1, 2], [{1: logprob(-0.1, 1)}])


def test_an_answer_keeps_ids_tokens_and_why_it_ended():
    completion = SimpleNamespace(
        token_ids=[5, 6], logprobs=None, finish_reason="length", text="never read"
    )
    answer = SimpleNamespace(request_id=3, prompt_token_ids=[1, 2], outputs=[completion])

    found = to_output(answer)

    assert ("3", 0, (1, 2), (5, 6)) == (
        found.request_id, found.step_idx, found.prompt_token_ids, found.token_ids,
    )  # fmt: skip
    assert (None, "length") == (found.logprobs, found.finish_reason)


class ValidationError(ValueError):
    """Shaped as pydantic's."""

    def __init__(self, *messages):
        super().__init__("1 validation error for VllmConfig\n  Value error, and so on [type=...]")
        self._messages = messages

    def errors(self):
        return [{"msg": text, "type": "value_error"} for text in self._messages]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValidationError("Value error, eager mode is needed", "another"), "eager mode is needed"),
        (ValidationError("Input should be a valid integer"), "Input should be a valid integer"),
        (ValueError("two\n  lines"), "two lines"),
        (NotImplementedError("not on CPU"), "not on CPU"),
    ],
)
def test_a_refusal_is_the_engines_own_reason_in_one_line(error, expected):
    assert expected == first_reason(error)


def test_a_validation_error_without_messages_is_told_whole():
    assert first_reason(ValidationError()).startswith(
        "1 validation error for VllmConfig Value error,"
    )
