import math

import pytest
import torch

from harness.refengine.config import ConfigError
from harness.refengine.sampler import SamplingRow, sample, to_tokens
from harness.refengine.sampling_params import SamplingParams


def row(position=0, seed=0, **params):
    return SamplingRow(params=SamplingParams(**params), seed=seed, position=position)


def test_greedy_takes_the_largest_logit():
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])

    assert sample(logits, [row(), row()]).token_ids.tolist() == [1, 0]


def test_logprobs_are_natural_log_of_softmax_in_float32():
    logits = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.bfloat16)
    (token,) = to_tokens(sample(logits, [row(logprobs=2)]), [row(logprobs=2)])
    total = math.log(sum(math.exp(x) for x in (1, 2, 4)))

    assert 4 - total == pytest.approx(token.logprob, abs=1e-6)
    assert token.top_token_ids == [2, 1]
    assert [4 - total, 2 - total] == pytest.approx(token.top_logprobs, abs=1e-6)


def test_each_row_gets_as_many_logprobs_as_it_asked_for():
    rows = [row(), row(logprobs=1), row(logprobs=3), row(logprobs=0)]
    tokens = to_tokens(sample(torch.randn(4, 8), rows), rows)

    assert [len(token.top_logprobs) for token in tokens] == [0, 1, 3, 0]
    assert [token.logprob is None for token in tokens] == [True, False, False, False]


def test_draws_follow_the_distribution():
    probs = torch.tensor([0.1, 0.2, 0.7])
    rows = [row(position=i, temperature=1.0) for i in range(4000)]
    counts = sample(probs.log().expand(4000, -1).clone(), rows).token_ids.bincount(minlength=3)

    assert probs.tolist() == pytest.approx((counts / 4000).tolist(), abs=0.03)


def test_draw_depends_on_seed_and_position_alone():
    logits = torch.randn(1, 64)
    alone = [sample(logits, [row(position=i, seed=7, temperature=1.0)]) for i in range(16)]
    together = sample(
        logits.expand(17, -1),
        [row(), *(row(position=i, seed=7, temperature=1.0) for i in range(16))],
    )
    other = sample(
        logits.expand(16, -1), [row(position=i, seed=8, temperature=1.0) for i in range(16)]
    )

    assert together.token_ids.tolist()[1:] == [a.token_ids.item() for a in alone]
    assert together.token_ids.tolist()[1:] != other.token_ids.tolist()


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(500, -1).clone()
    rows = [row(position=i, temperature=1.0, top_p=0.75) for i in range(500)]

    assert {0, 1} == set(sample(logits, rows).token_ids.tolist())


def test_greedy_rows_do_not_change_beside_sampled_ones():
    logits = torch.randn(2, 32)

    expected = logits[1].argmax().item()
    assert expected == sample(logits, [row(temperature=2.0), row()]).token_ids[1].item()


@pytest.mark.parametrize(
    "params", [{"max_tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"top_p": 2}, {"logprobs": -1}]
)
def test_impossible_sampling_is_refused_by_name(params):
    with pytest.raises(ConfigError, match=next(iter(params))):
        SamplingParams(**params)
