import pytest

from harness.refengine.config import ConfigError, EngineConfig
from harness.refengine.kv_cache import BlockPool
from harness.refengine.sampling_params import SamplingParams
from harness.refengine.scheduler import Request, SampledToken, Scheduler


@pytest.fixture
def make_scheduler(make_checkpoint):
    def make(num_blocks=100, **args):
        config = EngineConfig.from_args(make_checkpoint(), **{"block_size": 4, **args})
        return Scheduler(config, BlockPool(num_blocks, config.block_size))

    return make


def request(name, num_prompt, **params):
    return Request(
        request_id=name,
        prompt_token_ids=[5] * num_prompt,
        sampling_params=SamplingParams(**{"max_tokens": 3, **params}),
    )


def rows(step):
    return [(row.request_id, row.start, row.num_tokens, row.samples) for row in step.rows]


def run(scheduler, token_id=9):
    step = scheduler.schedule()
    sampled = {r.request_id: SampledToken(token_id=token_id) for r in step.rows if r.samples}
    return step, scheduler.update(step, sampled)


def test_prompt_longer_than_a_step_is_computed_in_chunks(make_scheduler):
    scheduler = make_scheduler(max_num_seqs=2, max_num_batched_tokens=4)
    scheduler.add(request("a", 10))

    steps = [rows(run(scheduler)[0]) for _ in range(4)]

    assert steps[0] == [("a", 0, 4, False)]
    assert steps[1] == [("a", 4, 4, False)]
    assert steps[2] == [("a", 8, 2, True)]
    assert steps[3] == [("a", 10, 1, True)]


def test_requests_join_and_leave_a_running_batch(make_scheduler):
    scheduler = make_scheduler(max_num_seqs=2)
    scheduler.add(request("a", 2, max_tokens=1))
    scheduler.add(request("b", 3, max_tokens=3))
    scheduler.add(request("c", 4, max_tokens=3))

    first, ended = run(scheduler)
    assert rows(first) == [("a", 0, 2, True), ("b", 0, 3, True)]
    assert [r.request_id for r in ended] == ["a"]
    second, _ = run(scheduler)
    assert rows(second) == [("b", 3, 1, True), ("c", 0, 4, True)]
    assert second.finished == ("a",)
    assert [new.request_id for new in second.new] == ["c"]


def test_rows_of_one_token_stand_first_and_order_is_kept(make_scheduler):
    scheduler = make_scheduler(max_num_seqs=4, max_num_batched_tokens=6)
    for name, length in (("a", 8), ("b", 1), ("c", 1)):
        scheduler.add(request(name, length))

    assert rows(run(scheduler)[0]) == [("a", 0, 6, False)]
    assert rows(run(scheduler)[0]) == [("b", 0, 1, True), ("c", 0, 1, True), ("a", 6, 2, True)]


def test_step_never_exceeds_its_tokens(make_scheduler):
    scheduler = make_scheduler(max_num_seqs=4, max_num_batched_tokens=7)
    for i in range(9):
        scheduler.add(request(str(i), 3 + 5 * i % 11))
    while scheduler.has_work:
        step, _ = run(scheduler)
        assert sum(row.num_tokens for row in step.rows) <= 7
        assert len(step.rows) <= 4
    assert scheduler.blocks.num_free == scheduler.blocks.num_usable


def test_request_waits_until_blocks_are_free(make_scheduler):
    scheduler = make_scheduler(num_blocks=1 + 3)
    scheduler.add(request("a", 6))
    scheduler.add(request("b", 6))

    assert [row.request_id for row in scheduler.schedule().rows] == ["a"]
    assert scheduler.blocks.num_free == 0
    assert len(scheduler.waiting) == 1


@pytest.mark.parametrize(
    ("num_prompt", "text"),
    [
        (0, "request 'a' has an empty prompt"),
        (128, "has 128 prompt tokens; at most 127 fit max_model_len=128"),
        (30, "needs 9 KV blocks, the cache has 5"),
    ],
)
def test_request_that_can_never_run_is_refused(make_scheduler, num_prompt, text):
    scheduler = make_scheduler(num_blocks=6)

    with pytest.raises(ConfigError, match=text):
        scheduler.add(request("a", num_prompt))
    assert not scheduler.has_work


@pytest.mark.parametrize(
    ("params", "token_id", "reason", "num_tokens"),
    [
        ({}, 2, "stop", 1),
        ({"ignore_eos": True}, 2, "length", 3),
        ({"stop_token_ids": [9], "ignore_eos": True}, 9, "stop", 1),
        ({}, 9, "length", 3),
    ],
)
def test_end_of_a_request_has_a_reason(make_scheduler, params, token_id, reason, num_tokens):
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, **params))
    ended = []
    while not ended:
        _, ended = run(scheduler, token_id)

    assert (reason, num_tokens) == (ended[0].finish_reason, len(ended[0].output))


def test_request_ends_at_the_model_length(make_scheduler):
    scheduler = make_scheduler(max_model_len=8)
    scheduler.add(request("a", 6, max_tokens=50))
    ended = []
    while not ended:
        _, ended = run(scheduler)

    assert (ended[0].finish_reason, len(ended[0].output)) == ("length", 2)
