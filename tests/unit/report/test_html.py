"""The page is one file, needs no network, escapes everything, and stays light."""

import json
import re
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser

import pytest

from harness.core import Outcome, Verdict, Waive
from harness.report import render_html
from harness.report.html import script_json

from .sample_session import build_sample, conclude_sample

EVIL = "</script><script>alert(1)</script>\"'<b>&amp;\u2028"


class Page(HTMLParser):
    """Tags with attributes, ids, and the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self._script = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
            self._script = len(self.scripts) - 1

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] += data

    def attributes(self, name):
        return [attrs[name] for _, attrs in self.tags if name in attrs]


@pytest.fixture(scope="module")
def mixed():
    return build_sample()


@pytest.fixture(scope="module")
def page(mixed):
    return render_html(*mixed.args)


def poisoned(value):
    """The same value with markup in every free text field."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, dict):
        return {poisoned(k): poisoned(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(poisoned(v) for v in value)
    if isinstance(value, frozenset):
        return frozenset(poisoned(v) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        closed = {
            "runner",
            "role",
            "backend",
            "space",
            "offload_backend",
            "source",
            "judge",
            "kind",
        }
        names = [f.name for f in fields(value) if f.name not in closed]
        return replace(value, **{name: poisoned(getattr(value, name)) for name in names})
    return value


def test_page_asks_the_network_for_nothing(page):
    parsed = Page(page)
    links = parsed.attributes("href") + parsed.attributes("src")
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org)", page)


def test_policy_forbids_every_request_and_every_other_script(page):
    policy = Page(page).attributes("content")[0]
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy
    assert "connect-src" not in policy


def test_markup_in_every_text_field_stays_text(mixed):
    runs = {key: replace(poisoned(run), run_id=key) for key, run in mixed.runs.items()}
    one_each = {r.verdict: r for r in mixed.results if r.case.role == "case"}.values()
    controls = [r for r in mixed.results if r.case.role != "case"][:2]
    results = [
        replace(poisoned(r), baseline_run_id=r.baseline_run_id, target_run_id=r.target_run_id)
        for r in [*one_each, *controls]
    ]
    outcome = replace(conclude_sample(mixed.results), sentence=EVIL)
    text = render_html(results, runs, outcome, {"title": EVIL, "session_id": EVIL})
    parsed = Page(text)
    assert len(parsed.scripts) == 3, "a string field opened or ended a script block"
    assert "alert(1)" not in text.replace("alert(1)&lt;", "").replace("alert(1)\\u003c", "")
    assert json.loads(parsed.scripts[1])["cells"][0]["a"].count("<script>") >= 1


def test_poison_reaches_the_page_so_the_escape_test_can_fail(mixed):
    result = replace(mixed.results[1], command=EVIL)
    text = render_html([result], mixed.runs, mixed.outcome, {})
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text


def test_json_in_a_script_block_can_not_end_it():
    text = script_json({"a": EVIL})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": EVIL}


def test_every_case_is_readable_without_a_script(mixed, page):
    ids = [attrs["id"] for tag, attrs in Page(page).tags if tag == "article"]
    assert len(ids) == len(set(ids)) == len(mixed.results)
    assert "html:not(.js) .needs-js{display:none}" in page


def test_every_link_in_the_grid_leads_to_a_case(page):
    parsed = Page(page)
    anchors = {attrs["data-case"] for tag, attrs in parsed.tags if tag == "article"}
    links = [
        attrs["data-case"] for tag, attrs in parsed.tags if tag == "a" and "data-case" in attrs
    ]
    assert links
    assert set(links) <= anchors


def test_ids_are_unique(page):
    ids = Page(page).attributes("id")
    assert len(ids) == len(set(ids))


def test_verdict_is_written_in_words_beside_its_mark(page):
    assert '<span aria-hidden="true">∅</span><span class="vh">VACUOUS, ' in page
    assert 'title="VACUOUS: v2-uva-gb1-pin1-eager"' in page


def test_the_sentence_comes_before_everything_else(mixed, page):
    body = page[page.index("<body>") :]
    sentence = body.index('<p class="sentence">')
    assert sentence < body.index('id="matrix"') < body.index("<article")


def test_sixty_cells_stay_below_two_megabytes():
    models = ("a", "b-16", "c")
    sample = build_sample(models=models)
    assert len(sample.results) >= 60
    assert len(render_html(*sample.args).encode()) < 2_000_000


def test_a_session_without_results_still_renders():
    outcome = Outcome(counts={}, controls={}, exit_code=4, sentence="Nothing was compared.")
    text = render_html([], {}, outcome, {})
    assert "Nothing was compared." in text
    assert "No cell was judged." in text


def test_missing_runs_leave_out_evidence_but_not_the_verdict(mixed):
    text = render_html(mixed.results, {}, mixed.outcome, {})
    assert "Weights by layer" not in text
    assert text.count('class="card case"') == len(mixed.results)


def test_two_cases_with_one_anchor_get_two_ids(mixed):
    twice = [mixed.results[1], mixed.results[1]]
    ids = [
        a["id"]
        for t, a in Page(render_html(twice, mixed.runs, mixed.outcome, {})).tags
        if t == "article"
    ]
    assert len(set(ids)) == 2


def test_log_tail_of_a_crashed_run_is_shown(page):
    assert "RuntimeError: copy stream is gone" in page
    assert "Target ended as crash" in page


@pytest.mark.parametrize("name", ["report.css", "report.js", "theme.js"])
def test_assets_are_inlined_unchanged(page, name):
    from importlib.resources import files

    assert files("harness.report").joinpath("assets", name).read_text(encoding="utf-8") in page


def test_a_waived_cell_says_so_and_why(mixed):
    waive = Waive(
        cell="uva", verdict="FAIL", reason="known <defect>", link="x.py", expires="2099-01-01"
    )
    results = [
        replace(r, case=replace(r.case, waive=waive)) if r.verdict is Verdict.FAIL else r
        for r in mixed.results
    ]
    assert any(r.is_waived for r in results)

    text = render_html(results, *mixed.args[1:])

    assert 'class="tag waived" title="known &lt;defect&gt;"' in text
    assert "Waived until 2099-01-01: known &lt;defect&gt; (x.py)" in text
