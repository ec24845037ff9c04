"""How the harness gets into a real engine's processes: a folder that registers its plugin."""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.core import Setting, canonical_json

CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables that name an engine's caches: releases must not share any."""


KEPT = "HARNESS_ENGINE_CACHE"
"""Variable that names a folder for caches which are to outlive a session."""


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


def register_plugin(folder: Path) -> None:
    """Make `folder`, once on PYTHONPATH, register the plugin of `inside.py` with vLLM."""
    info = folder / "offload_harness_inside-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: offload-harness-inside\nVersion: 0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\noffload_harness = harness.launch.inside:enter\n", encoding="utf-8"
    )
