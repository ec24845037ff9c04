"""`-k EXPR`: and, or, not and parentheses over names, as pytest's own `-k` reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.core import UsageError

Selection = Callable[[str, Mapping[str, str]], bool]

_TOKEN = re.compile(r"\s*(?:(?P<paren>[()])|(?P<word>[^\s()]+))")
_MAX_DEPTH = 100


def parse_selection(expr: str) -> Selection:
    """Compile `expr` into a function of a case's id and axes.

    A name is a substring of the id, in any letter case; `axis=value` names one axis exactly.
    A blank expression keeps every case.

    Raises:
        UsageError: the expression cannot be read (the text gives the column, from 1). The
            returned function raises it when an `axis=` is none of the case's axes.
    """
    parser = _Parser(expr=expr, tokens=_tokenise(expr))
    if not parser.tokens:
        return lambda _case_id, _axes: True
    keeps = parser.read_or(0)
    if parser.at < len(parser.tokens):
        raise parser.error("end of expression, 'and' or 'or'")
    return keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    text: str
    column: int


def _tokenise(expr: str) -> list[_Token]:
    matches = _TOKEN.finditer(expr)
    return [_Token(text=m[m.lastgroup or 0], column=m.start(m.lastgroup or 0) + 1) for m in matches]


@dataclass(slots=True, kw_only=True)
class _Parser:
    """Recursive descent: or < and < not < name or parentheses."""

    expr: str
    tokens: list[_Token]
    at: int = 0

    def accept(self, text: str) -> bool:
        is_next = self.at < len(self.tokens) and self.tokens[self.at].text.lower() == text
        self.at += is_next
        return is_next

    def error(self, wanted: str) -> UsageError:
        at_end = self.at >= len(self.tokens)
        column = len(self.expr) + 1 if at_end else self.tokens[self.at].column
        found = "the end" if at_end else repr(self.tokens[self.at].text)
        return UsageError(f"-k {self.expr!r}: column {column}: expected {wanted}, found {found}")

    def read_or(self, depth: int) -> Selection:
        terms = [self.read_and(depth)]
        while self.accept("or"):
            terms.append(self.read_and(depth))
        return lambda case_id, axes: any(term(case_id, axes) for term in terms)

    def read_and(self, depth: int) -> Selection:
        terms = [self.read_not(depth)]
        while self.accept("and"):
            terms.append(self.read_not(depth))
        return lambda case_id, axes: all(term(case_id, axes) for term in terms)

    def read_not(self, depth: int) -> Selection:
        if depth > _MAX_DEPTH:
            raise self.error(f"at most {_MAX_DEPTH} levels of 'not' and parentheses")
        if self.accept("not"):
            inner = self.read_not(depth + 1)
            return lambda case_id, axes: not inner(case_id, axes)
        if self.accept("("):
            inner = self.read_or(depth + 1)
            if not self.accept(")"):
                raise self.error("')'")
            return inner
        return self.read_name()

    def read_name(self) -> Selection:
        is_name = self.at < len(self.tokens) and self.tokens[self.at].text.lower() not in (
            "and",
            "or",
            ")",
        )
        if not is_name:
            raise self.error("a name, 'not' or '('")
        name = self.tokens[self.at].text.lower()
        self.at += 1
        return lambda case_id, axes: _matches(name, case_id, axes)


def _matches(name: str, case_id: str, axes: Mapping[str, str]) -> bool:
    axis, is_axis, value = name.partition("=")
    if not is_axis:
        return name in case_id.lower()
    if axis not in axes:
        raise UsageError(f"-k: unknown axis {axis!r} in {name!r}; known: {', '.join(axes)}")
    return axes[axis].lower() == value
