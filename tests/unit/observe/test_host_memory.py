"""Host memory: of this process, of its whole group, and of nobody where the kernel is silent."""

import os
from pathlib import Path

import pytest

from harness.observe.host_memory import read_host_memory, read_rollup

ROLLUP = """7f00-7fff ---p 00000000 00:00 0 [rollup]
Rss:                {rss} kB
Pss:                {pss} kB
Pss_Dirty:             1 kB
"""


def write_process(proc, name, *, rss, pss, group, comm="python"):
    folder = proc / name
    folder.mkdir()
    (folder / "smaps_rollup").write_text(ROLLUP.format(rss=rss, pss=pss))
    (folder / "stat").write_text(f"{name} ({comm}) S 1 {group} {group} 0 -1\n")


@pytest.fixture
def proc(tmp_path):
    write_process(tmp_path, "self", rss=300, pss=200, group=os.getpgrp())
    write_process(tmp_path, str(os.getpid()), rss=300, pss=200, group=os.getpgrp())
    return tmp_path


def test_a_group_is_the_sum_of_its_processes_and_of_no_other(proc):
    write_process(proc, "900001", rss=70, pss=50, group=os.getpgrp(), comm="odd) name 1 2")
    write_process(proc, "900002", rss=9000, pss=9000, group=os.getpgrp() + 1)
    (proc / "uptime").write_text("1")

    found = read_host_memory(proc)

    assert (300 * 1024, 200 * 1024) == (found.rss_bytes, found.pss_bytes)
    assert (370 * 1024, 250 * 1024) == (found.group_rss_bytes, found.group_pss_bytes)
    assert found.num_processes == 2


def test_a_process_that_ends_while_it_is_read_is_left_out(proc):
    write_process(proc, "900001", rss=70, pss=50, group=os.getpgrp())
    (proc / "900001" / "smaps_rollup").unlink()
    (proc / "900002").mkdir()

    assert read_host_memory(proc).num_processes == 1


def test_a_kernel_that_does_not_tell_gives_nothing(tmp_path):
    assert read_host_memory(tmp_path / "none") is None
    (tmp_path / "smaps_rollup").write_text("Rss: 1 kB\n")
    assert read_rollup(tmp_path) is None


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_memory_that_this_process_touches_is_seen():
    before = read_host_memory()
    held = bytearray(os.urandom(1)) * (64 << 20)
    after = read_host_memory()

    assert after.rss_bytes - before.rss_bytes > 48 << 20
    assert after.pss_bytes - before.pss_bytes > 48 << 20
    assert after.group_rss_bytes >= after.rss_bytes >= after.pss_bytes > 0
    assert len(held) == 64 << 20
