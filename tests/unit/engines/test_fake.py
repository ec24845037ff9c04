import pytest

from harness.core import ProbeSnapshot, Setting, encode
from harness.engines import EngineOutOfMemory, EngineRefused, InternalMovedError
from harness.engines.fake import FakeEngine
from tests.builders import build_workload


def start(script=None, **fields):
    engine = FakeEngine()
    args = {"script": script} if script else {}
    setting = Setting(engine="fake", engine_args=args, **fields)
    engine.start(setting, build_workload(), num_threads=1)
    return engine


def test_without_a_script_answers_are_made_of_the_prompt_and_of_full_length():
    outputs = start().generate(2)

    assert [o.step_idx for o in outputs] == [2, 2]
    assert outputs[0].token_ids[:4] == (1, 2, 3, 1)
    assert len(outputs[0].token_ids) == build_workload().sampling_params.max_tokens


def test_scripted_answers_and_snapshot_come_back():
    snapshot = ProbeSnapshot(
        engine_version="9",
        runner_class="x.Y",
        runner="v1",
        offloader_class="NoopOffloader",
        reported_offloaded_bytes=5,
    )
    engine = start({"token_ids": [[1], [2]], "snapshot": encode(snapshot)})

    assert [o.token_ids for o in engine.generate(0)] == [(1,), (2,)]
    assert engine.probe() == snapshot


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ({"refuse": "r"}, EngineRefused),
        ({"oom": "o"}, EngineOutOfMemory),
        ({"crash": "c"}, RuntimeError),
        ("crash", RuntimeError),
        ({"typo": 1}, ValueError),
    ],
)
def test_scripted_failures_raise(action, error):
    with pytest.raises(error):
        start({"start": action})


def test_unknown_script_keys_and_arguments_are_refused():
    with pytest.raises(EngineRefused, match="Unknown key 'strat'"):
        start({"strat": "crash"})


def test_it_has_neither_worker_nor_modules():
    engine = start()

    with pytest.raises(InternalMovedError, match="harness_probe"):
        engine.rpc("harness_probe")
    with pytest.raises(InternalMovedError, match=r"runner\.v2"):
        engine.modules.module("runner.v2")
