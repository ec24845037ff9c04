"""Faults of wiring: an offloader, a flag or a selector that is asked for and never arrives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.core import OffloadConfig
from harness.engines.base import EngineModules

from .base import WITH_VLLM, Fault, Mode
from .patch import replace_name

UNPINNED: dict[Mode, OffloadConfig] = {
    "uva": OffloadConfig(cpu_offload_gb=1, pin_memory=False),
    "uva-copy": OffloadConfig(cpu_offload_gb=1, uva=False, pin_memory=False),
    "prefetch": OffloadConfig(offload_group_size=1, offload_prefetch_step=3, pin_memory=False),
}
_MLP = frozenset({"gate_up_proj", "down_proj"})
SELECTIVE: dict[Mode, OffloadConfig] = {
    "uva": OffloadConfig(cpu_offload_gb=1, cpu_offload_params=_MLP),
    "uva-copy": OffloadConfig(cpu_offload_gb=1, cpu_offload_params=_MLP, uva=False),
    "prefetch": OffloadConfig(offload_group_size=1, offload_prefetch_step=3, offload_params=_MLP),
}


def _skip_set_offloader(modules: EngineModules) -> None:
    def set_offloader(offloader: object) -> None:
        """Leave the process's offloader as it is."""
        del offloader

    replace_name(modules.module("runner.v2"), "set_offloader", set_offloader)


def _pin_always(modules: EngineModules, *roles: str) -> None:
    for role in roles:
        owner: Any = modules.module(role)

        def should_pin_memory(owner: Any = owner) -> bool:
            """Say what an environment without the variable says: whatever the device can."""
            return bool(owner.get_current_device().pin_memory_available)

        replace_name(owner, "should_pin_memory", should_pin_memory)


def _pin_in_prefetch(modules: EngineModules) -> None:
    _pin_always(modules, "offloader.prefetch")


def _pin_everywhere(modules: EngineModules) -> None:
    _pin_always(modules, "offloader.prefetch", "offloader.uva")


def _select_whole_names(modules: EngineModules) -> None:
    def is_selected(param_name: str, selectors: Iterable[str]) -> bool:
        """Take a selector for a parameter's whole name; no selector still takes all."""
        selectors = tuple(selectors)
        return not selectors or param_name in selectors

    for role in ("offloader.prefetch", "offloader.uva"):
        replace_name(modules.module(role), "is_selected", is_selected)


def _unless_pinned(offload: OffloadConfig) -> str | None:
    return "pin_memory is left on" if offload.pin_memory else None


def _unless_selective(offload: OffloadConfig) -> str | None:
    is_uva = offload.resolved_backend == "uva"
    given = offload.cpu_offload_params if is_uva else offload.offload_params
    return None if given else "no selector is given"


def _copy_but_say_view(modules: EngineModules) -> None:
    owner: Any = modules.module("offloader.uva").UVAOffloader
    plain = owner._offload_module

    def offload_module(self: Any, module_index: str, module: Any, prefix: str) -> None:
        self.uva_offloading = False
        plain(self, module_index, module, prefix)
        self.uva_offloading = True
        for param in module.parameters():
            if hasattr(param, "_vllm_offloaded_cpu_data"):
                param._vllm_is_uva_offloaded = True

    replace_name(owner, "_offload_module", offload_module)


def _view_but_say_copy(modules: EngineModules) -> None:
    owner: Any = modules.module("offloader.uva").UVAOffloader
    plain = owner._offload_module

    def offload_module(self: Any, module_index: str, module: Any, prefix: str) -> None:
        self.uva_offloading = True
        plain(self, module_index, module, prefix)
        self.uva_offloading = False
        for param in module.parameters():
            vars(param).pop("_vllm_is_uva_offloaded", None)

    replace_name(owner, "_offload_module", offload_module)


OFFLOADER_NOT_INSTALLED = Fault(
    name="offloader-not-installed",
    summary="runner V2 never installs the offloader, so every offload flag is ignored",
    seen_in=("vllm#51396",),
    defect_class="A",
    killed_by=("effect", "memory"),
    blind="tokens: all are equal, since nothing is offloaded",
    engines=WITH_VLLM,
    runners=("v2",),
    before_start=_skip_set_offloader,
)

PIN_FLAG_CACHED = Fault(
    name="pin-flag-cached",
    summary="the pin setting is read once, before this engine's environment is set",
    seen_in=("vllm#37672", "vllm#37482"),
    defect_class="I",
    killed_by=("effect",),
    blind="tokens; settings that leave pinning on",
    offloads=UNPINNED,
    only_if=_unless_pinned,
    before_start=_pin_everywhere,
)

PIN_FLAG_IGNORED = Fault(
    name="pin-flag-ignored",
    summary="only UVA honours the pin setting: prefetch pins host copies all the same",
    seen_in=("vllm#37672",),
    defect_class="I",
    killed_by=("effect",),
    blind="tokens; settings that leave pinning on",
    modes=("prefetch",),
    offloads=UNPINNED,
    only_if=_unless_pinned,
    before_start=_pin_in_prefetch,
)

SELECTOR_MATCHES_NOTHING = Fault(
    name="selector-matches-nothing",
    summary="selectors are taken for whole parameter names: they match nothing, nobody says so",
    seen_in=("vllm#53120", "vllm#53931"),
    defect_class="A",
    killed_by=("effect",),
    blind="tokens; settings without a selector",
    offloads=SELECTIVE,
    only_if=_unless_selective,
    before_start=_select_whole_names,
)


UVA_IS_COPIED = Fault(
    name="uva-is-copied",
    summary="views are asked for; each forward copies the weights, though all flags say view",
    defect_class="A",
    killed_by=("effect",),
    blind="tokens, and bytes at rest: the copies live for one layer only",
    modes=("uva",),
    before_start=_copy_but_say_view,
)

UVA_FLAG_IGNORED = Fault(
    name="uva-flag-ignored",
    summary="views are forbidden; weights are read as views all the same, though no flag says so",
    defect_class="I",
    killed_by=("effect",),
    blind="tokens; settings that leave views on",
    modes=("uva-copy",),
    before_start=_view_but_say_copy,
)


def _always_v1(modules: EngineModules) -> None:
    def use_v2_model_runner(config: object) -> bool:
        """Take V1, whatever was asked."""
        del config
        return False

    replace_name(modules.module("runner"), "use_v2_model_runner", use_v2_model_runner)


RUNNER_ALWAYS_V1 = Fault(
    name="runner-always-v1",
    summary="the engine takes runner V1 whatever is asked, so a test of V2 tests V1 twice",
    kind="test",
    runners=("v2",),
    modes=("none", "uva", "uva-copy", "prefetch"),
    before_start=_always_v1,
)
