"""Folders for an engine's caches: releases must not share any."""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.core import Setting, canonical_json

CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables that name an engine's caches."""


def locate_caches(setting: Setting, scratch: Path, kept: str | None) -> dict[str, str]:
    """Each variable of `CACHES` and its folder: of one interpreter and release alone.

    Args:
        setting: names both; variables of its own stay as they are.
        scratch: of this session.
        kept: folder to use instead, so that a later session finds what an earlier one left there.
    """
    place = canonical_json([setting.python, setting.release])
    own = (Path(kept) if kept else scratch) / hashlib.sha256(place.encode()).hexdigest()[:12]
    return {name: str(own / name.lower()) for name in CACHES if name not in setting.env}
