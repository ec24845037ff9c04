"""The reference engine's statement agrees with the engine, and is read without loading it."""

import subprocess
import sys

from harness.engines.capabilities import REFERENCE
from harness.launch import engine_supports
from harness.refengine import config
from harness.refengine.models import ARCHITECTURES


def test_the_statement_is_what_the_engine_does():
    assert set(ARCHITECTURES) == set(REFERENCE["architectures"])
    assert {"auto", *config.DTYPES} == set(REFERENCE["dtypes"])


def test_an_engine_without_a_statement_says_nothing():
    assert {} == engine_supports("fake")


def test_reading_it_loads_no_engine():
    code = (
        "import sys; from harness.launch import engine_supports; engine_supports('reference'); "
        "print([m for m in ('torch', 'harness.refengine') if m in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == child.stdout.strip()
