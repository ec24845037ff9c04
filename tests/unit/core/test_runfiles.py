"""The run folder: whole or absent, and not synced to the disk for each launch."""

import os

import pytest

from harness.core import Run, RunStatus, Setting
from harness.core.runfiles import read_run, write_json_atomic, write_run


@pytest.fixture
def num_syncs(monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    return lambda: len(synced)


def test_a_run_is_written_without_waiting_for_the_disk(tmp_path, num_syncs):
    run = Run(
        run_id="r", setting=Setting(faults=("a", "b")), status=RunStatus.OK, planted_faults=("a",)
    )
    write_run(tmp_path / "r", run)

    assert num_syncs() == 0
    assert read_run(tmp_path / "r") == run
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["outputs.jsonl", "run.json"]


def test_other_records_wait_for_the_disk(tmp_path, num_syncs):
    write_json_atomic(tmp_path / "manifest.json", {})

    assert num_syncs() == 1
