"""Redaction by name, as the record applies it; the rules live in core, which a child can import."""

from harness.core.redact import (
    MASK,
    is_secret_name,
    redact_argv,
    redact_env,
    redact_json,
    redact_text,
)

__all__ = ["MASK", "is_secret_name", "redact_argv", "redact_env", "redact_json", "redact_text"]
