import json

import pytest

from harness.core import RecordError, Setting
from harness.launch.request import REQUEST_FILE, LaunchRequest, read_request, write_request
from tests.builders import build_workload


def build_request() -> LaunchRequest:
    return LaunchRequest(
        run_id="r",
        setting=Setting(faults=("x",)),
        workload=build_workload(),
        num_threads=2,
        launched_at=12.5,
        warm=True,
    )


def test_a_request_reads_back_as_written(tmp_path):
    write_request(tmp_path, build_request())

    assert read_request(tmp_path) == build_request()
    assert [p.name for p in tmp_path.iterdir()] == [REQUEST_FILE]


def test_a_request_of_another_schema_is_refused(tmp_path):
    write_request(tmp_path, build_request())
    path = tmp_path / REQUEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))

    with pytest.raises(RecordError, match="schema_version=99"):
        read_request(tmp_path)
