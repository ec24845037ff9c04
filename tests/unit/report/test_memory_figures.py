"""Figures of memory: both sides in one row, unknown ones left out, in page and terminal."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from harness.core import HostMemory, MemoryTrace
from harness.report.html import render_html
from harness.report.memory_figures import list_figures
from harness.report.terminal import explain

from .sample_session import build_sample, find

TRACE = MemoryTrace(device_bytes=5000, device_peak_bytes=6000, pinned_bytes=300)
FULL = replace(
    TRACE,
    device_load_bytes=4000,
    device_load_peak_bytes=4500,
    pinned_allocated_bytes=512,
    process=HostMemory(
        rss_bytes=3 << 20, pss_bytes=2 << 20, group_rss_bytes=7 << 20, group_pss_bytes=5 << 20
    ),
)


def rows_of(*args):
    return {row.name: (row.baseline, row.target) for row in list_figures(*args)}


def test_every_figure_stands_beside_its_twin():
    rows = rows_of((FULL, replace(FULL, device_bytes=1000)))

    assert rows["device, now"] == ("5,000 B", "1,000 B")
    assert rows["device, peak of loading"] == ("4,500 B", "4,500 B")
    assert rows["pinned, asked for"] == ("300 B", "300 B")
    assert rows["pinned, allocated"] == ("512 B", "512 B")
    assert rows["worker, RSS"] == ("3.0 MiB", "3.0 MiB")
    assert rows["process group, PSS"] == ("5.0 MiB", "5.0 MiB")


def test_what_neither_side_knows_is_left_out_and_what_one_knows_is_not_made_up():
    assert "pinned, allocated" not in rows_of((TRACE, TRACE))
    assert "worker, RSS" not in rows_of((TRACE, TRACE))
    assert rows_of((TRACE, FULL))["pinned, allocated"] == ("not known", "512 B")


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (MemoryTrace(device_bytes=0, device_peak_bytes=9), "nothing"),
        (
            MemoryTrace(device_bytes=8, device_peak_bytes=9, pinned_bytes=7),
            "8 B device, 7 B pinned",
        ),
    ],
    ids=["clean", "held"],
)
def test_what_is_left_after_shutdown_is_named(left, text):
    rows = rows_of((TRACE, TRACE), (None, left))
    assert rows["left after shutdown"] == ("not known", text)
    assert "left after shutdown" not in rows_of((TRACE, TRACE))


def test_the_page_and_the_terminal_show_the_figures():
    sample = build_sample()
    console = Console(record=True, width=120, file=StringIO())
    console.print(explain(find(sample, "PASS"), sample.runs))

    assert "pinned, asked for" in console.export_text()
    assert '<th scope="row">pinned, asked for</th>' in render_html(*sample.args)
