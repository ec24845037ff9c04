"""The step summary stays within limits, and nothing in a record becomes Markdown."""

from dataclasses import replace

import pytest

from harness.report import render_markdown
from harness.report.markdown import MAX_ROWS, code_span, escape_markdown

from .sample_session import build_sample


@pytest.fixture(scope="module")
def mixed():
    return build_sample()


def test_sentence_counts_and_bad_cells_are_there(mixed):
    text = render_markdown(*mixed.args)
    assert text.startswith("## 4 of 44 cells FAIL")
    assert "| ✓ | PASS | 28 |" in text
    assert "`tiny-llama/v2-prefetch-g2n1s3-pin1-eager`" in text
    assert "A plain paired test would have passed findings in 10 cells." in text


def test_passing_session_lists_no_cell():
    text = render_markdown(*build_sample(mixed=False).args)
    assert "cell | why" not in text


def test_rows_are_capped(mixed):
    bad = next(r for r in mixed.results if r.verdict.value == "VACUOUS")
    text = render_markdown([bad] * (MAX_ROWS + 7), {}, mixed.outcome, {})
    assert text.count("| ∅ VACUOUS |") == MAX_ROWS
    assert "and 7 more cells" in text


def test_markup_in_a_record_is_escaped(mixed):
    outcome = replace(mixed.outcome, sentence="<img src=x> | [a](b) `c`\n# d")
    first = render_markdown([], {}, outcome, {}).splitlines()[0]
    assert first == r"## \<img src=x\> \| \[a\](b) \`c\` \# d"


@pytest.mark.parametrize(
    ("text", "span"), [("a`b", "`` a`b ``"), ("a|b", r"`a\|b`"), ("a\nb", "`a b`")]
)
def test_code_span_can_not_be_ended_from_inside(text, span):
    assert code_span(text) == span


def test_escape_keeps_plain_words():
    assert escape_markdown("8 of 8 equal") == "8 of 8 equal"
