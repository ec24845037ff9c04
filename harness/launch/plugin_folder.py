"""How the harness gets into a real engine's processes: a folder that registers its plugin."""

from __future__ import annotations

from pathlib import Path


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
