"""The drawing of the slots: wrong bytes at a read stand out, and what is right does not."""

from dataclasses import replace

import pytest

from harness.core import OrderingTrace, Setting, SlotEvent
from harness.report.html import render_html
from harness.report.timeline import view_timeline

from .sample_runs import WORKLOAD, make_run, prefetch
from .sample_session import build_sample, find

SETTING = Setting(offload=prefetch(2, 1, 3))
BEFORE = [("copy", 1, 0), ("copy", 3, 1), ("copy", 5, 2)]
CLEAN = [
    *BEFORE,
    *(("read", 1, 0), ("copy", 7, 0), ("read", 3, 1), ("copy", 3, 1)),
    *(("read", 5, 2), ("copy", 5, 2), ("read", 7, 0), ("copy", 1, 0)),
]
WRONG = [
    *BEFORE,
    *(("read", 1, 0), ("copy", 7, 0), ("read", 3, 1), ("copy", 1, 0)),
    *(("read", 5, 2), ("copy", 3, 1), ("read", 7, 0), ("copy", 5, 2)),
]


def recorded(run, told, races=()):
    events = tuple(
        SlotEvent(
            kind=kind,
            seq=10 * n,
            slot_idx=slot,
            layer_idx=layer,
            stream="copy" if kind == "copy" else "default",
            is_race=n in races,
        )
        for n, (kind, layer, slot) in enumerate(told)
    )
    trace = OrderingTrace(num_work=9, num_copies=9, num_checked=9, timeline=events)
    return replace(run, probe=replace(run.probe, ordering=trace))


def drawn(told, races=()):
    return view_timeline(recorded(make_run("t", WORKLOAD, SETTING), told, races))


def test_a_clean_step_has_nothing_in_the_fail_colour():
    view = drawn(CLEAN)
    assert not view.has_wrong
    assert not any(m.is_wrong or m.note for m in view.marks)
    assert not any(band.is_wrong for band in view.bands)
    assert view.sentence == "In the last step each of 4 reads found its own layer in the slot."


def test_a_wrong_refill_marks_the_read_the_copy_and_the_time_between():
    view = drawn(WRONG)
    wrong = [(m.label, m.note) for m in view.marks if m.is_wrong]
    assert wrong == [("copy 1", ""), ("read 7", "holds 1")]
    copy, read = (m for m in view.marks if m.is_wrong)
    (band,) = (b for b in view.bands if b.is_wrong)
    assert band.x == copy.x < read.x < band.x + band.width
    assert view.sentence == "In the last step layer 7 read slot 0 while it held layer 1."


def test_a_race_is_marked_though_the_order_drawn_is_right():
    view = drawn(CLEAN, races={9})
    assert [(m.label, m.note) for m in view.marks if m.is_wrong] == [("read 7", "unordered")]
    assert "1 box is not in order" in view.sentence


def test_time_goes_right_and_each_slot_has_a_row():
    view = drawn(CLEAN)
    steps = [m for m in view.marks if m.x > view.step_x]
    assert [m.x for m in steps] == sorted({m.x for m in steps})
    assert len(view.marks) - len(steps) == 3
    assert [name for name, _ in view.slots] == ["slot 0", "slot 1", "slot 2"]
    assert max(m.x for m in view.marks) < view.width
    assert max(m.y for m in view.marks) < view.height


def test_a_read_that_no_copy_was_seen_before_is_told():
    assert drawn(CLEAN[1:]).sentence == "No copy was seen before 1 read."


@pytest.mark.parametrize("told", [[], BEFORE])
def test_nothing_is_drawn_without_a_read(told):
    assert drawn(told) is None


def test_nothing_is_drawn_without_a_recording():
    assert view_timeline(None) is None
    assert view_timeline(make_run("t", WORKLOAD, SETTING)) is None


@pytest.mark.parametrize(("told", "is_red"), [(WRONG, True), (CLEAN, False), ([], None)])
def test_the_page_shows_it_in_words_and_red_only_where_wrong(told, is_red):
    sample = build_sample()
    result = find(sample, "FAIL")
    run_id = result.target_run_id
    runs = {**sample.runs, run_id: recorded(sample.runs[run_id], told)}
    page = render_html(sample.results, runs, sample.outcome, sample.manifest)
    assert ("Slots over one step" in page) is (is_red is not None)
    assert ("holds 1</text>" in page) is bool(is_red)
    assert ('class="mark read wrong"' in page) is bool(is_red)
    if is_red is not None:
        assert 'role="img" aria-label="Which layer each slot holds' in page
        assert page.count(drawn(told).sentence) >= 2
