import pytest

from harness.core import HarnessError, RunStatus
from harness.engines import EngineOutOfMemory, EngineRefused, InternalMovedError
from harness.launch.worker import Progress, check_outputs, classify_exception, read_device


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EngineRefused("not here"), (RunStatus.UNSUPPORTED, "not here")),
        (EngineOutOfMemory("too\n  big"), (RunStatus.OOM, "too big")),
        (ValueError("odd"), (RunStatus.CRASH, "ValueError in load: odd")),
        (MemoryError(), (RunStatus.CRASH, "MemoryError in load: ")),
    ],
)
def test_an_exception_becomes_a_status_and_one_line(error, expected):
    assert classify_exception(error, "load") == expected


def test_seconds_of_a_stage_add_up_also_when_it_fails():
    progress = Progress()
    progress.timed("generate", lambda: None)
    first = progress.timings["generate"]
    with pytest.raises(ZeroDivisionError):
        progress.timed("generate", lambda: 1 // 0)

    assert progress.timings["generate"] >= first
    assert progress.stage == "generate"


@pytest.mark.parametrize("outputs", [(), [], ("x", "y"), None])
def test_anything_but_one_answer_a_request_is_refused(outputs):
    with pytest.raises(HarnessError, match="expected 2 answers"):
        check_outputs(outputs, 2)


def test_the_device_is_the_live_workers_not_the_one_asked_for():
    class Live:
        def rpc(self, method):
            assert method == "harness_device"
            return "other"

    class Without:
        def rpc(self, method):
            raise InternalMovedError(f"fake.{method}")

    assert read_device(Live()) == "other"
    assert read_device(Without()) == "unknown"
