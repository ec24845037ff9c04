"""An engine that points at its log is quoted with the error that stands there."""

import pytest

from harness.core import Run, RunStatus, Setting
from harness.launch.root_cause import find_cause, name_root_cause

POINTER = "RuntimeError in load: Engine core initialization failed. See root cause above."
LOG = """(Main pid=1) WARNING 11-29 22:14:00 [base.py:380] ValueError: no tokenizer
(EngineCore pid=2) ERROR 11-29 22:11:38 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-29 22:11:38 [core.py:1510] {cause}
RuntimeError: Engine core initialization failed. See root cause above.
"""


def run_of(error, status=RunStatus.CRASH):
    return Run(run_id="r", setting=Setting(), status=status, error=error)


@pytest.fixture
def log(tmp_path):
    def write(cause):
        path = tmp_path / "log.txt"
        path.write_text(LOG.format(cause=cause))
        return path

    return write


def test_the_first_error_of_the_core_takes_the_place_of_the_pointer(log):
    run = name_root_cause(run_of(POINTER), log("AssertionError: not enough nodes"))
    assert run.status is RunStatus.CRASH
    assert run.error == "AssertionError in the engine core's process: not enough nodes"


def test_memory_that_did_not_suffice_in_the_core_is_oom(log):
    run = name_root_cause(run_of(POINTER), log("torch.OutOfMemoryError: CUDA out of memory."))
    assert run.status is RunStatus.OOM


def test_an_error_that_speaks_for_itself_is_left_alone(log):
    run = run_of("AssertionError in load: on CPU")
    assert name_root_cause(run, log("ValueError: other")) is run
    fine = run_of(POINTER, RunStatus.OK)
    assert name_root_cause(fine, log("ValueError: other")) is fine


def test_a_log_without_an_error_leaves_the_pointer(tmp_path):
    empty = tmp_path / "log.txt"
    empty.write_text("all is well\nRuntimeError: failed. See root cause above.\n")
    assert find_cause(empty) is None
    assert find_cause(tmp_path / "none.txt") is None
    assert name_root_cause(run_of(POINTER), empty).error == POINTER
