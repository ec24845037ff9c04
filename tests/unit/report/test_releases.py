"""Several releases on one page: the grid, what changed between them, and what was not seen."""

import random
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from rich.console import Console

from harness.core import IntegrityTrace, OffloadConfig, OrderingTrace, Run, RunStatus, Setting
from harness.report import build_view, render_html, render_junit, render_markdown, summary
from harness.report.cell import view_cell
from harness.report.changes import view_changes
from harness.report.effect import view_config, view_effect
from harness.report.labels import offload_label
from harness.report.terminal import case_line, explain

from .sample_runs import MODEL, make_expected, make_probe, sides
from .sample_session import RELEASES, build_releases, build_sample, find

EMULATED = "CPU tensors, copies at once, so no race can show"


@pytest.fixture(scope="module")
def several():
    return build_releases()


@pytest.fixture(scope="module")
def emulated():
    return build_releases(engine="vllm-cpu-emulation", releases=("0.32.0",))


def text_of(renderable, width=160):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_grid_has_a_row_for_each_offload_and_runner_and_a_column_for_each_release(several):
    (table,) = build_view(*several.args).releases.tables
    assert table.releases == RELEASES
    shown = {
        (r.offload, r.runner): ["".join(c.mark for c in cells) for cells in r.cells]
        for r in table.rows
    }
    assert shown["prefetch 2/1/3", "V2"] == ["∅", "✕", "✓"]
    assert shown["prefetch 2/1/1, pin off", "V1"] == ["–", "✓", "✓"]  # noqa: RUF001
    assert shown["against the release before: none", "V1"] == ["", "✓", "✓"]
    assert [r.span for r in table.rows] == [2, 0, 2, 0, 2, 0, 2, 0, 1]


def test_since_stands_beside_each_row(several):
    (table,) = build_view(*several.args).releases.tables
    since = {(r.offload, r.runner): r.since for r in table.rows}
    assert since["uva 1 GiB", "V1"] == "right since 0.26.0"
    assert since["uva 1 GiB", "V2"] == "right since 0.32.0"
    assert since["prefetch 2/1/3", "V1"] == "wrong in 0.28.0, right again in 0.32.0"
    assert since["against the release before: none", "V1"] == "same output"


def test_execution_mode_is_named_only_where_both_occur(several):
    modes = {r.runner for r in build_view(*several.args).releases.tables[0].rows}
    assert modes == {"V1", "V2"}
    both = build_releases(modes=(True, False))
    rows = build_view(*both.args).releases.tables[0].rows
    assert {r.runner for r in rows if r.span == 4 or not r.span} == {
        *("V1 eager", "V1 graph", "V2 eager", "V2 graph")
    }


def test_rows_do_not_depend_on_the_order_runs_ended(several):
    shuffled = list(several.results)
    random.Random(11).shuffle(shuffled)
    args = (several.runs, several.outcome, several.manifest)
    assert build_view(several.results, *args) == build_view(shuffled, *args)


def test_session_of_the_reference_engine_alone_keeps_its_page():
    sample = build_sample(models=("tiny-llama",))
    view = build_view(*sample.args)
    assert view.releases is None
    assert {"engine", "release"}.isdisjoint(axis for axis, _ in view.filters)
    html = render_html(*sample.args)
    assert '<table class="grid" id="grid">' in html
    assert "emulation" not in re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)


def test_real_engine_of_a_single_release_has_the_grid_too():
    sample = build_releases(releases=("0.32.0",))
    (table,) = build_view(*sample.args).releases.tables
    assert {r.since for r in table.rows} == {"right in 0.32.0"}


def test_a_release_without_a_label_is_named_in_plain_words():
    sample = build_releases(releases=("",))
    (table,) = build_view(*sample.args).releases.tables
    assert table.releases == ("the harness's Python",)
    assert {r.since for r in table.rows} == {"right in the harness's Python"}
    heading = "the harness&#39;s Python"
    assert f'<th scope="col" title="{heading}">{heading}</th>' in render_html(*sample.args)
    assert "the harness's Python" in text_of(
        summary(sample.outcome, list(sample.results), sample.runs)
    )


def test_engines_have_a_table_each(several, emulated):
    runs = {**several.runs, **emulated.runs}
    results = (*emulated.results, *several.results)
    view = build_view(results, runs, several.outcome, {})
    assert [t.engine for t in view.releases.tables] == ["vllm", "vllm-cpu-emulation"]
    assert [bool(t.emulation) for t in view.releases.tables] == [False, True]
    assert view.title == "Offload on vllm 0.26.0, 0.28.0 and 0.32.0; vllm-cpu-emulation 0.32.0"


def test_header_names_each_release_as_probed_and_its_interpreter(several):
    facts = dict(build_view(*several.args).facts)
    assert facts["vllm 0.28.0"] == "version 0.28.0, Python 3.12.4, torch 2.11.0"


def test_release_that_never_answered_is_in_the_header_all_the_same(several):
    dead = {
        n: Run(run_id=n, setting=r.setting, status=RunStatus.CRASH) for n, r in several.runs.items()
    }
    facts = dict(build_view(several.results, dead, several.outcome, {}).facts)
    assert facts["vllm 0.28.0"].endswith("launches, none answered")


def test_every_chip_links_to_its_cell_and_each_cell_tells_its_history(several):
    html = render_html(*several.args)
    grid = html[html.index('<div id="grid">') : html.index('<ul class="key">')]
    anchors = re.findall(r'data-case="([^"]+)"', grid)
    assert len(anchors) == sum(r.counts for r in several.results)
    assert all(f'<article class="card case" id="case={a}"' in html for a in anchors)
    assert html.count("VACUOUS since 0.26.0, PASS since 0.32.0") == 6


def test_defaults_that_changed_are_shown_and_what_a_release_lacks_is_absent(several):
    ((engine, releases, rows),) = build_view(*several.args).releases.changes
    assert (engine, releases) == ("vllm", RELEASES)
    assert {r.name: (r.where, r.asked, r.values) for r in rows} == {
        "async_scheduling": ("V1, V2", "–", ("none", "no", "absent")),  # noqa: RUF001
        "attention.backend": ("V1, V2", "–", ("FA2", "FA3", "FA3")),  # noqa: RUF001
        "max_num_seqs": ("V1, V2", "–", ("256", "256", "1,024")),  # noqa: RUF001
        "offload_pin": ("V1, V2", "–", ("absent", "absent", "yes")),  # noqa: RUF001
    }
    assert rows[1].is_new == (False, True, False)


def baselines(*configs, env=(), **changes):
    """A launch of one baseline for each (release, configuration)."""
    made = []
    for number, (release, config) in enumerate(configs):
        setting = Setting(runner="v1", engine="vllm", release=release, **changes)
        probe = make_probe(MODEL, setting, make_expected(MODEL, setting))
        probe = replace(probe, effective_config=config, env=dict(env).get(release, {}))
        made.append(Run(run_id=str(number), setting=setting, status=RunStatus.OK, probe=probe))
    return made


def test_what_changes_between_launches_of_one_release_is_no_change_of_a_default():
    runs = baselines(("1", {"id": "a"}), ("1", {"id": "b"}), ("2", {"id": "c"}))
    assert view_changes("vllm", ("1", "2"), runs) == ()


def test_addresses_within_a_value_are_no_change():
    runs = baselines(
        ("1", {"x": "<a.B at 0x7f0012345678>"}), ("2", {"x": "<a.B at 0x7f00aaaaaaa>"})
    )
    assert view_changes("vllm", ("1", "2"), runs) == ()


def test_value_that_was_asked_for_is_shown_as_asked():
    runs = baselines(("1", {"seed": 1}), ("2", {"seed": 2}), engine_args={"seed": 1})
    (row,) = view_changes("vllm", ("1", "2"), runs)
    assert (row.asked, row.values) == ("1", ("1", "2"))


def test_environment_in_effect_is_compared_too():
    env = {"1": {"VLLM_X": "a"}, "2": {"VLLM_X": "b"}}
    (row,) = view_changes("vllm", ("1", "2"), baselines(("1", {}), ("2", {}), env=env))
    assert (row.name, row.values) == ("env VLLM_X", ("a", "b"))


def test_baselines_of_other_modes_are_not_compared_with_each_other():
    graph = baselines(("2", {"x": 2}), enforce_eager=False)
    assert view_changes("vllm", ("1", "2"), [*baselines(("1", {"x": 1})), *graph]) == ()


def test_configuration_of_a_release_without_that_baseline_is_left_blank():
    runs = baselines(("1", {"x": 1}), ("3", {"x": 3}))
    (row,) = view_changes("vllm", ("1", "2", "3"), runs)
    assert row.values == ("1", "–", "3")  # noqa: RUF001
    assert row.is_new == (False, False, True)


def test_terminal_shows_the_grid_and_since_when(several):
    text = text_of(summary(several.outcome, several.results))
    (line,) = (x for x in text.splitlines() if x.startswith("prefetch 2/1/3") and "V2" in x)
    words = " ".join(line.split("V2")[1].split())
    assert words == "∅ VACUOUS ✕ FAIL ✓ PASS wrong in 0.28.0, right since 0.32.0"


def test_terminal_explains_a_cell_with_its_history(several):
    result = find(several, "FAIL")
    text = text_of(explain(result, several.runs, results=several.results))
    assert "PASS since 0.26.0, FAIL since 0.28.0, PASS since 0.32.0" in text


def test_markdown_holds_the_grid(several):
    text = render_markdown(*several.args)
    assert "| offload | runner | 0.26.0 | 0.28.0 | 0.32.0 | since |" in text
    assert "| prefetch 2/1/3 | V2 | ∅ | ✕ | ✓ | wrong in 0.28.0, right since 0.32.0 |" in text


def properties(sample):
    root = ET.fromstring(render_junit(*sample.args).split("\n", 1)[1])
    return [
        {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in root.iter("testcase")
    ]


def test_junit_has_engine_release_and_history_as_properties(several):
    found = next(p for p in properties(several) if p["verdict"] == "FAIL" and p["role"] == "case")
    assert (found["engine"], found["release"]) == ("vllm", "0.28.0")
    assert found["history"] == "PASS since 0.26.0, FAIL since 0.28.0, PASS since 0.32.0"
    assert "emulation" not in found


def test_emulation_is_said_in_every_output(emulated):
    html = render_html(*emulated.args)
    header = html[html.index("<header>") : html.index("</header>")]
    assert ">emulation</span>" in header
    assert EMULATED in header
    articles = html.split("<article")[1:]
    assert len(articles) == len(emulated.results)
    assert all('class="tag emulation"' in a and EMULATED in a for a in articles)
    assert f"emulation: {EMULATED}" in text_of(summary(emulated.outcome, emulated.results))
    assert "(emulation)" in text_of(case_line(emulated.results[0]))
    assert f"emulation: {EMULATED}" in text_of(explain(emulated.results[0], emulated.runs))
    assert render_markdown(*emulated.args).count(f"emulation: {EMULATED}") == 2
    assert {p.get("emulation") for p in properties(emulated)} == {EMULATED}


def test_what_was_not_observed_is_listed_in_the_cell(several):
    result = find(several, "PASS")
    runs = dict(several.runs)
    for side, extra in ((result.baseline_run_id, ()), (result.target_run_id, ("graph replays",))):
        probe = runs[side].probe
        ordering = OrderingTrace(num_work=1, num_copies=1, num_checked=1, not_observed=("side",))
        integrity = IntegrityTrace(mode="full", num_reads=1, num_hashed=1, not_observed=extra)
        probe = replace(probe, not_observed=("packed",), ordering=ordering, integrity=integrity)
        runs[side] = replace(runs[side], probe=probe)
    cell = view_cell(result, runs, "x")
    assert cell.not_observed == (
        ("both sides", "packed"),
        ("both sides", "ordering: side"),
        ("target", "integrity: graph replays"),
    )
    assert "not observed: packed" in text_of(explain(result, runs))


def test_an_argument_nobody_could_check_is_shown_as_such_and_in_one_row():
    result = find(build_sample(models=("tiny-llama",)), "PASS")
    effect = next(f for f in result.findings if f.judge == "effect")
    row = {"name": "seed", "asked": 1, "baseline": 1, "target": None, "ok": None}
    evidence = {"rows": [row], "unchecked_arguments": {"baseline": [], "target": ["seed"]}}
    result = replace(result, findings=(replace(effect, evidence=evidence),))
    left, right = sides()
    shown = next(r for r in view_effect(result, left, right) if r.name == "seed")
    assert (shown.baseline, shown.target, shown.is_ok) == ("1", "not checked", None)
    assert "seed" not in {r.name for r in view_config(result, left, right)}


@pytest.mark.parametrize(
    ("offload", "label"),
    [
        (OffloadConfig(offload_backend="cpu_offload"), "cpu offload"),
        (OffloadConfig(offload_backend="disk_offload"), "disk offload"),
        (
            OffloadConfig(offload_backend="device_map", device_map={"": "cpu", "lm_head": "disk"}),
            "device map, all on cpu, lm_head on disk",
        ),
    ],
)
def test_offload_of_accelerate_has_its_words(offload, label):
    assert offload_label(Setting(engine="accelerate", offload=offload)) == label
