import pytest

from harness.core import UsageError
from harness.settings import parse_selection

CASE = "tiny-llama/v2-prefetch-g8n2s1-sel.down_proj+gate_up_proj-pin0-eager"
AXES = {"runner": "v2", "backend": "prefetch", "pin": "off"}


@pytest.mark.parametrize(
    ("expr", "keeps"),
    [
        ("", True),
        ("  ", True),
        ("prefetch", True),
        ("PREFETCH", True),
        ("uva", False),
        ("not uva", True),
        ("not not prefetch", True),
        ("prefetch and uva", False),
        ("prefetch or uva", True),
        ("uva or prefetch and pin1", False),
        ("(prefetch or uva) and pin0", True),
        ("prefetch or uva and pin1", True),
        ("not uva and not pin1", True),
        ("not (uva or pin0)", False),
        ("NOT uva AND v2", True),
        ("g8n2s1-sel.down_proj+gate", True),
        ("((v2))", True),
        ("oreager", False),
        ("runner=v2", True),
        ("RUNNER=V2 and pin=on", False),
        ("pin=off", True),
    ],
)
def test_selection_keeps_what_it_names(expr, keeps):
    assert keeps is parse_selection(expr)(CASE, AXES)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        ("and", "column 1: expected a name, 'not' or '(', found 'and'"),
        ("v1 and", "column 7: expected a name, 'not' or '(', found the end"),
        ("not", "column 4: expected a name, 'not' or '(', found the end"),
        ("(v1", "column 4: expected ')', found the end"),
        ("v1)", "column 3: expected end of expression, 'and' or 'or', found ')'"),
        ("v1 v2", "column 4: expected end of expression, 'and' or 'or', found 'v2'"),
        ("()", "column 2: expected a name, 'not' or '(', found ')'"),
        ("v1 or or v2", "column 7: expected a name, 'not' or '(', found 'or'"),
        ("not " * 5000 + "v1", "expected at most 100 levels"),
        ("(" * 5000, "expected at most 100 levels"),
    ],
)
def test_bad_expression_is_refused_with_its_column(expr, text):
    with pytest.raises(UsageError) as caught:
        parse_selection(expr)

    assert text in str(caught.value)


def test_unknown_axis_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="unknown axis 'pim' in 'pim=off'; known: runner, backend"):
        parse_selection("pim=off")(CASE, AXES)


def test_letter_case_of_the_id_does_not_matter_either():
    assert parse_selection("mymodel")("MyModel/v1-none-eager", {})
