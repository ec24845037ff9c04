import pytest

from harness.core import UsageError
from harness.engines import ENGINES, InternalMovedError, view_of


def test_an_object_of_no_known_engine_has_no_view():
    with pytest.raises(InternalMovedError, match=r"builtins\.object"):
        view_of(object())


def test_an_unknown_engine_lists_known_ones():
    with pytest.raises(UsageError, match="Known: accelerate, fake, reference"):
        ENGINES.get("referense")
