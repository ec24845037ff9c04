"""One place where errors become one line and an exit code."""

import json
import signal

import pytest

from harness.cli import main as entry
from harness.core import LaunchError, UsageError


@pytest.fixture
def end(monkeypatch, capsys):
    """`end(error or code, *arguments)` -> (exit code, stdout, stderr)."""
    monkeypatch.setattr(signal, "signal", lambda *_args: None)

    def run(what, *arguments):
        def app(**_options):
            if isinstance(what, BaseException):
                raise what
            return what

        monkeypatch.setattr(entry, "app", app)
        with pytest.raises(SystemExit) as stop:
            entry.main(list(arguments))
        return (stop.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        (None, 0, ""),
        (4, 4, ""),
        (UsageError("x=1 is wrong [b]"), 2, "harness: x=1 is wrong [b]\n"),
        (LaunchError("gone"), 3, "harness: gone\n"),
        (KeyboardInterrupt(), 130, "harness: interrupted\n"),
        (130, 130, "harness: interrupted\n"),
        (NotADirectoryError(20, "Not a directory", "/x/y"), 2, "harness: /x/y: Not a directory\n"),
        (OSError(28, "No space left on device"), 3, "harness: a file: No space left on device\n"),
    ],
)
def test_exit_code_and_line(end, what, code, said):
    assert (code, "", said) == end(what)


def test_json_repeats_an_error_as_an_object(end):
    code, out, err = end(UsageError("wrong"), "list", "--json")

    assert (2, "harness: wrong\n") == (code, err)
    assert {"error": "wrong", "exit_code": 2} == json.loads(out)


def test_a_defect_of_our_own_is_not_hidden(monkeypatch):
    def app(**_options):
        raise ZeroDivisionError

    monkeypatch.setattr(signal, "signal", lambda *_args: None)
    monkeypatch.setattr(entry, "app", app)
    with pytest.raises(ZeroDivisionError):
        entry.main([])
