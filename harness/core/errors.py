"""The exception tree and the exit codes.

HarnessError                      everything this package raises on purpose
|-- UsageError                    exit 2: what the user wrote cannot be run
|   |-- SettingError              a setting is impossible, unknown or contradicts itself
|   |-- MatrixError               a matrix file cannot be read (carries line and column)
|   `-- ModelNotFoundError        a model name or path leads nowhere
|-- RecordError                   a record on disk is missing, damaged or from another schema
|-- LaunchError                   the launcher itself failed (not the engine: that is a Run)
`-- ComparisonError               also an AssertionError: a comparison did not pass
    |-- ComparisonFailed          FAIL: a judge disproved
    |-- ComparisonVacuous         VACUOUS: an asked-for effect is unproven, or nothing was compared
    |-- ComparisonUnsupported     UNSUPPORTED: the engine refused the setting
    `-- ComparisonErrored         ERROR: a run crashed, hung or could not be probed
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import CaseResult


class ExitCode(IntEnum):
    """Process exit codes; the worst wins in the order FAIL, ERROR, VACUOUS, UNSUPPORTED."""

    PASS = 0
    """All cases pass and are proven."""
    FAIL = 1
    """At least one case was disproved."""
    USAGE = 2
    """The request itself was wrong; nothing was launched."""
    ERROR = 3
    """A run crashed, hung or could not be probed, or a control misbehaved."""
    VACUOUS = 4
    """An asked-for effect was not proven, or nothing was compared."""
    UNSUPPORTED = 5
    """Every case was refused by its engine."""


class HarnessError(Exception):
    """Root of every exception raised on purpose; its text is one line fit for a terminal."""

    exit_code: ExitCode = ExitCode.ERROR


class UsageError(HarnessError):
    """The user's request cannot be run as written."""

    exit_code = ExitCode.USAGE


class SettingError(UsageError):
    """A setting is impossible, unknown, or contradicts itself."""


class MatrixError(UsageError):
    """A matrix file cannot be used; the text starts with `FILE:LINE:COLUMN:` where known."""


class ModelNotFoundError(UsageError):
    """A model name or path leads nowhere."""


class RecordError(HarnessError):
    """A record on disk is missing, damaged or of an unknown schema version."""

    exit_code = ExitCode.USAGE


class LaunchError(HarnessError):
    """The launcher itself failed; a failing engine is a `Run`, never this."""


class ComparisonError(HarnessError, AssertionError):
    """A comparison did not pass; `result` carries the whole evidence."""

    def __init__(self, message: str, result: CaseResult | None = None) -> None:
        super().__init__(message)
        self.result = result


class ComparisonFailed(ComparisonError):  # noqa: N818 - reads as the verdict it carries
    """A judge disproved the case."""

    exit_code = ExitCode.FAIL


class ComparisonVacuous(ComparisonError):  # noqa: N818
    """An asked-for effect was not proven, or nothing was compared."""

    exit_code = ExitCode.VACUOUS


class ComparisonUnsupported(ComparisonError):  # noqa: N818
    """The engine refused the setting."""

    exit_code = ExitCode.UNSUPPORTED


class ComparisonErrored(ComparisonError):  # noqa: N818
    """A run crashed, hung or could not be probed."""

    exit_code = ExitCode.ERROR
