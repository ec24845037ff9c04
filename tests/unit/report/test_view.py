"""What the page says is worked out from the record, and left out where the record is silent."""

import random
from dataclasses import replace

import pytest

from harness.core import Finding, RunStatus, Setting, Verdict, Waive
from harness.report import build_view
from harness.report.cell import lead_sentence, view_cell
from harness.report.effect import show_value, view_effect
from harness.report.labels import offload_label
from harness.report.memory import view_memory
from harness.report.paired import view_paired
from harness.report.placement import view_placement
from harness.report.view import _exit_meaning
from harness.report.words import capitalised, format_bytes, listing, ranges

from .sample_runs import MODEL, WORKLOAD, make_probe, make_run, prefetch, sides, uva
from .sample_session import build_sample, find, make_case


@pytest.fixture(scope="module")
def mixed():
    return build_sample()


def test_rows_and_columns_do_not_depend_on_the_order_runs_ended(mixed):
    shuffled = list(mixed.results)
    random.Random(3).shuffle(shuffled)
    args = (mixed.runs, mixed.outcome, mixed.manifest)
    assert build_view(mixed.results, *args) == build_view(shuffled, *args)


def test_grid_has_a_column_for_each_model_and_runner(mixed):
    grid = build_view(*mixed.args).grid
    assert [(g.model, g.span) for g in grid.groups] == [("random-llama-16", 2), ("tiny-llama", 2)]
    assert grid.columns == ("V1", "V2", "V1", "V2")
    assert all(len(row.cells) == 4 for row in grid.rows)


def test_execution_mode_joins_the_column_only_where_it_varies(mixed):
    result = mixed.results[1]
    graph = replace(
        result, case=replace(result.case, target=replace(result.case.target, enforce_eager=False))
    )
    grid = build_view([result, graph], {}, mixed.outcome, {}).grid
    assert sorted(grid.columns) == ["V1", "V1 graph"]


def test_controls_stand_apart_from_the_grid(mixed):
    view = build_view(*mixed.args)
    in_grid = {c.role for row in view.grid.rows for cells in row.cells for c in cells}
    assert in_grid == {"case"}
    assert [c.text for c in view.controls] == [
        "null run exact (4 times)",
        "planted fault caught: missing-copy-wait (2 times)",
    ]


def test_a_missed_planted_fault_is_said_and_opened_first(mixed):
    control = find(mixed, "FAIL", "control")
    missed = replace(control, verdict=Verdict.PASS)
    view = build_view([missed], mixed.runs, mixed.outcome, {})
    assert not view.controls[0].is_ok
    assert view.controls[0].text.startswith("planted fault missed: missing-copy-wait")
    assert view.first_anchor == missed.case.anchor


def test_downgraded_verdicts_are_called_so_in_the_head_and_on_the_pills(mixed):
    shown = build_view([], {}, replace(mixed.outcome, downgraded=True), {})
    text = "EXACT verdicts are downgraded: the null run is not exact"
    assert dict(shown.facts)["note"] == text
    assert all(text in pill.meaning for pill in shown.pills)
    assert "note" not in dict(build_view([], {}, mixed.outcome, {}).facts)


def test_of_several_releases_only_the_downgraded_ones_are_named(mixed):
    bad = replace(mixed.outcome, downgraded=True, not_exact=("vllm 0.26", "vllm 0.28"))
    shown = build_view([], {}, bad, {})
    text = "EXACT verdicts of vllm 0.26, vllm 0.28 are downgraded: null runs not exact"
    assert dict(shown.facts)["note"] == text


def test_an_inexact_null_run_shows_in_the_header(mixed):
    null = replace(find(mixed, "PASS", "null"), verdict=Verdict.FAIL)
    facts = dict(build_view([null], mixed.runs, mixed.outcome, {}).facts)
    assert facts["null run"] == "not exact (1 of 1)"


def test_header_leaves_out_what_nobody_recorded(mixed):
    facts = dict(build_view(mixed.results, {}, mixed.outcome, {}).facts)
    assert "machine" not in facts
    assert facts["workload"] == "8 prompts × 64 tokens"  # noqa: RUF001


def test_the_worst_cell_is_opened_first(mixed):
    view = build_view(*mixed.args)
    opened = next(c for c in view.cells if c.anchor == view.first_anchor)
    assert opened.verdict == "FAIL"


def test_proofs_come_in_reading_order_whatever_order_the_judges_spoke(mixed):
    result = find(mixed, "FAIL")
    backwards = replace(result, findings=tuple(reversed(result.findings)))
    cell = view_cell(backwards, mixed.runs, "x")
    proofs = ["effect", "placement", "memory", "ordering", "integrity", "tokens"]
    assert [p.judge for p in cell.proofs] == proofs
    assert cell.proofs[-1].heading == "output differs"


def test_a_judge_without_a_word_is_shown_as_silent(mixed):
    result = find(mixed, "PASS")
    quiet = replace(result, findings=tuple(f for f in result.findings if f.judge != "memory"))
    tile = view_cell(quiet, mixed.runs, "x").proofs[2]
    assert (tile.judge, tile.verdict) == ("memory", "SILENT")


def test_a_result_without_findings_says_that_nothing_was_compared(mixed):
    empty = replace(find(mixed, "PASS"), findings=(), verdict=Verdict.VACUOUS)
    assert lead_sentence(empty) == "No judge gave a word: nothing was compared"


def test_crash_shows_status_error_and_log(mixed):
    cell = view_cell(find(mixed, "ERROR"), mixed.runs, "x")
    assert cell.breakdowns[0].side == "target"
    assert cell.breakdowns[0].status == RunStatus.CRASH.value
    assert cell.breakdowns[0].log.endswith("RuntimeError: copy stream is gone")
    assert (cell.tokens, cell.placement, cell.memory, cell.effect) == (None, None, None, ())


def test_drifted_probe_names_what_was_not_found(mixed):
    result = find(mixed, "PASS")
    run = mixed.runs[result.target_run_id]
    drifted = replace(run, probe=replace(run.probe, drift=("worker.model_runner",)))
    cell = view_cell(result, {**mixed.runs, run.run_id: drifted}, "x")
    assert "worker.model_runner" in cell.breakdowns[0].log


def test_vacuous_cells_are_what_a_plain_test_passes(mixed):
    pairs = [(r, view_cell(r, mixed.runs, r.case.anchor)) for r in mixed.results]
    rows = {(row.verdict, row.is_control): row for row in view_paired(pairs, mixed.runs)}
    assert (rows["VACUOUS", False].word, rows["VACUOUS", False].num_cells) == ("passes", 6)
    assert rows["ERROR", False].word == "no output to compare"
    assert ("PASS", False) not in rows
    assert rows["FAIL", True].is_control


def test_placement_draws_each_layer_and_flags_what_is_not_expected():
    case = make_case(WORKLOAD, Setting(runner="v2", offload=prefetch(2, 1, 3)))
    good = make_run("r", WORKLOAD, case.target)
    bad = make_run("r", WORKLOAD, case.target, installed=False)
    drawn, wrong = view_placement(case, good), view_placement(case, bad)
    assert [c.label for c in drawn.columns] == [str(i) for i in range(8)]
    assert [c.slot for c in drawn.columns] == ["", "0", "", "1", "", "2", "", "0"]
    assert not any(c.is_wrong for c in drawn.columns)
    assert [c.is_wrong for c in wrong.columns] == [False, True] * 4
    assert drawn.sentence.endswith("as computed from shapes, to the byte.")
    assert wrong.sentence.startswith("0 parameters offloaded, 0 B; computed from shapes: 16")


def test_placement_blocks_fill_each_column_once():
    case = make_case(WORKLOAD, Setting(runner="v1", offload=uva(0.004)))
    for column in view_placement(case, make_run("r", WORKLOAD, case.target)).columns:
        assert sum(b.height_percent for b in column.blocks) == pytest.approx(100, abs=0.1)


def test_memory_bars_share_one_scale_and_name_the_saving(mixed):
    result = find(mixed, "PASS")
    left, right = (mixed.runs[i] for i in (result.baseline_run_id, result.target_run_id))
    view = view_memory(result, left, right)
    widths = [sum(s.width_percent for s in bar.segments) for bar in view.bars]
    assert widths[0] == pytest.approx(100, abs=0.01)
    assert widths[1] < 100
    assert f"{result.case.expected.offloaded_bytes:,} B less" in view.sentence


def test_memory_takes_the_judge_at_its_word_where_it_measured():
    left, right = sides()
    case = make_case(WORKLOAD, right.setting)
    evidence = {"saved_bytes": 5, "expected_saved_bytes": 7, "account": "weights and buffer pool"}
    word = Finding(judge="memory", verdict=Verdict.FAIL, summary="x", evidence=evidence)
    result = replace(build_sample().results[1], case=case, findings=(word,))
    text = view_memory(result, left, right).sentence
    assert text == (
        "After the last step the target holds 5 B less in weights and buffer pool; "
        "computed: 7 B less."
    )


def test_memory_is_left_out_unless_both_sides_were_measured(mixed):
    left, right = sides()
    bare = replace(right, probe=replace(right.probe, memory=None))
    assert view_memory(mixed.results[1], left, bare) is None


def test_effect_rows_come_from_the_judge_and_tolerate_damage(mixed):
    result = mixed.results[1]
    rows = [{"name": "runner", "asked": "v1", "baseline": "v1", "target": "v2", "ok": False}, 7, {}]
    word = Finding(judge="effect", verdict=Verdict.VACUOUS, summary="x", evidence={"rows": rows})
    found = view_effect(replace(result, findings=(word,)), *sides())
    assert (found[0].name, found[0].target, found[0].is_ok) == ("runner", "v2", False)
    assert [r.name for r in found].count("runner") == 1


def test_effect_rows_are_read_from_the_probes_when_no_judge_gave_them(mixed):
    setting = Setting(runner="v1", offload=uva(1))
    result = replace(mixed.results[1], case=make_case(WORKLOAD, setting), findings=())
    rows = {r.name: r for r in view_effect(result, *sides(installed=False))}
    assert rows["offloaded bytes"].is_ok is False
    assert rows["offloaded bytes"].target == "0 B"
    assert rows["runner"].is_ok is True


def test_engine_warnings_are_shown(mixed):
    result = mixed.results[1]
    setting = result.case.target
    probe = make_probe(MODEL, setting, result.case.expected, warnings=("both backends asked for",))
    run = replace(mixed.runs[result.target_run_id], probe=probe)
    cell = view_cell(result, {**mixed.runs, run.run_id: run}, "x")
    assert cell.warnings == (("target", "both backends asked for"),)


@pytest.mark.parametrize(
    ("offload", "label"),
    [
        (uva(0.5), "uva 0.5 GiB"),
        (uva(1, "mlp", view=False), "uva 1 GiB, uva off, only mlp"),
        (prefetch(8, 2, 1, pin=False), "prefetch 8/2/1, pin off"),
    ],
)
def test_offload_settings_read_as_words(offload, label):
    assert offload_label(Setting(offload=offload)) == label


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (-2048, "-2.0 KiB"), (3 << 30, "3.0 GiB")],
)
def test_bytes_have_a_binary_unit(number, text):
    assert format_bytes(number) == text


def test_small_words():
    assert ranges([3, 0, 1, 2, 7]) == "0-3, 7"
    assert ranges([]) == "none"
    assert listing("abcdef", 2) == "a, b and 4 more"
    assert capitalised("offload never took effect") == "Offload never took effect"
    assert capitalised("cpu_offload_gb=1 was asked for") == "cpu_offload_gb=1 was asked for"
    assert show_value(["a", {"b": True}]) == "a, b: yes"


def test_a_session_of_waived_cells_is_not_called_proven(mixed):
    waive = Waive(cell="uva", verdict="FAIL", reason="known", expires="2099-01-01")
    red = next(r for r in mixed.results if r.verdict is Verdict.FAIL and r.counts)
    waived = replace(red, case=replace(red.case, waive=waive))
    green = next(r for r in mixed.results if r.verdict is Verdict.PASS and r.counts)

    assert "are proven" in _exit_meaning(0, [green])
    assert "red as its waive says" in _exit_meaning(0, [green, waived])
    assert "nothing is proven" in _exit_meaning(0, [waived])
