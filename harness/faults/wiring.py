"""Faults of wiring: an offloader or a flag that is asked for and never arrives."""

from __future__ import annotations

from typing import Any

from harness.engines.base import EngineModules

from .base import Fault
from .patch import replace_name


def _skip_set_offloader(modules: EngineModules) -> None:
    def set_offloader(offloader: object) -> None:
        """Leave the process's offloader as it is."""
        del offloader

    replace_name(modules.module("runner.v2"), "set_offloader", set_offloader)


def _pin_always(modules: EngineModules) -> None:
    prefetch: Any = modules.module("offloader.prefetch")

    def should_pin_memory() -> bool:
        """Ask the device only."""
        return bool(prefetch.get_current_device().pin_memory_available)

    replace_name(prefetch, "should_pin_memory", should_pin_memory)


OFFLOADER_NOT_INSTALLED = Fault(
    name="offloader-not-installed",
    summary="runner V2 never installs the offloader, so every offload flag is ignored",
    seen_in="vllm#51396",
    killed_by=("effect",),
    blind="outputs: all tokens are equal, since nothing is offloaded",
    runners=("v2",),
    before_start=_skip_set_offloader,
)

PIN_FLAG_IGNORED = Fault(
    name="pin-flag-ignored",
    summary="the prefetch offloader pins host copies although pinning was disabled",
    seen_in="vllm#37672",
    killed_by=("effect",),
    blind="settings that leave pinning on: nothing differs there",
    backends=("prefetch",),
    before_start=_pin_always,
)
