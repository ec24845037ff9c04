"""Stage 6: case results and runs -> a folder on disk, and back."""

from .artifacts import read_run, write_run
from .load import Session, latest_session, load_session
from .merge import merge_sessions
from .redact import redact_argv, redact_env, redact_json, redact_text
from .store import Recorder, new_session_id
from .whole import find_shortfall

__all__ = [
    "Recorder",
    "Session",
    "find_shortfall",
    "latest_session",
    "load_session",
    "merge_sessions",
    "new_session_id",
    "read_run",
    "redact_argv",
    "redact_env",
    "redact_json",
    "redact_text",
    "write_run",
]
