"""Faults of an update: other weights were given, and some bytes of the old ones stay in use."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from harness.core import OffloadConfig
from harness.engines.base import EngineModules

from .base import Fault
from .patch import replace_name

A_SLOT_EACH = OffloadConfig(offload_group_size=1, offload_prefetch_step=8)
"""A slot of its own for each of eight layers: what is written to it stays for one forward."""


def _with_offloader(modules: EngineModules, name: str, stand_in: Callable[[Any], Any]) -> None:
    """Let a function of `updates` deal with what stands in for the offloader."""
    owner = modules.module("runner.v1")
    plain = getattr(owner, name, None)

    def update(model: Any, offloader: Any, given: Any) -> None:
        assert plain is not None, "replace_name found it"
        plain(model, stand_in(offloader), given)

    replace_name(owner, name, update)


def _no_masters(offloader: Any) -> Any:
    """Parameters are written where they are; host copies are not known, slots not filled anew."""
    del offloader
    return SimpleNamespace(masters=dict, refresh=lambda: None)


def _no_refresh(offloader: Any) -> Any:
    """Host copies are written; what the slots hold already is left there."""
    return SimpleNamespace(masters=offloader.masters, refresh=lambda: None)


def _reload_misses_master(modules: EngineModules) -> None:
    _with_offloader(modules, "reload_weights", _no_masters)


def _patch_misses_master(modules: EngineModules) -> None:
    _with_offloader(modules, "apply_patches", _no_masters)


def _reload_keeps_slots(modules: EngineModules) -> None:
    _with_offloader(modules, "reload_weights", _no_refresh)


def _reload_skips_resident(modules: EngineModules) -> None:
    """Only what the offloader holds is written."""
    owner: Any = modules.module("updates")
    plain, plain_reload = owner.load_checkpoint, modules.module("runner.v1").reload_weights
    held: list[Any] = []

    def reload_weights(model: Any, offloader: Any, folder: Any) -> None:
        held[:] = [param for param in model.parameters() if param in offloader.masters()]
        plain_reload(model, offloader, folder)

    def load_checkpoint(model: Any, folder: Any, destinations: Any, write: Any) -> None:
        params = dict(model.named_parameters())

        def write_offloaded(destination: Any, tensor: Any, name: str) -> None:
            if name not in params or any(params[name] is param for param in held):
                write(destination, tensor, name)

        plain(model, folder, destinations, write_offloaded)

    replace_name(modules.module("runner.v1"), "reload_weights", reload_weights)
    replace_name(owner, "load_checkpoint", load_checkpoint)


def _reload_the_first(modules: EngineModules) -> None:
    """The checkpoint that was loaded first is read again, whatever path is given."""
    owner: Any = modules.module("runner.v1").GPUModelRunner
    plain = owner.reload_weights

    def reload_weights(self: Any, weights_path: str) -> None:
        del weights_path
        plain(self, self.config.model)

    replace_name(owner, "reload_weights", reload_weights)


def _reload_makes_resident(modules: EngineModules) -> None:
    """New tensors on the device take the place of the offloaded ones; the books stay."""
    owner: Any = modules.module("runner.v1")
    plain = owner.reload_weights

    def reload_weights(model: Any, offloader: Any, folder: Any) -> None:
        plain(model, offloader, folder)
        for param in offloader.masters():
            param.data = offloader.device.to(param.data, "device", kind="weights")
            del param._vllm_offloaded_cpu_data
        offloader._params.clear()
        offloader.host_copies.clear()

    replace_name(owner, "reload_weights", reload_weights)


def _patch_nothing_in_v2(modules: EngineModules) -> None:
    def apply_sparse_weight_patches(self: Any, patches: Any) -> None:
        """Take the patches, and forward them to nobody."""

    owner = modules.module("runner.v2").GPUModelRunner
    replace_name(owner, "apply_sparse_weight_patches", apply_sparse_weight_patches)


def _patch_next_index(modules: EngineModules) -> None:
    """Flat indices are taken to begin at one."""
    owner: Any = modules.module("updates")
    plain = owner.put_values

    def put_values(master: Any, places: Any, values: Any) -> None:
        plain(master, (places + 1) % master.numel(), values)

    replace_name(owner, "put_values", put_values)


RELOAD_MISSES_MASTER = Fault(
    name="reload-misses-master",
    summary="a reload writes the slot but not the host copy: right once, old after the next refill",
    seen_in=("compressed-tensors#224", "compressed-tensors#361"),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="a reload of the same checkpoint; UVA, which has no second copy",
    modes=("prefetch",),
    offloads={"prefetch": A_SLOT_EACH},
    workload="reload-changed",
    before_start=_reload_misses_master,
)

REFILL_NOT_RESTARTED = Fault(
    name="refill-not-restarted",
    summary="a reload writes host copies and leaves the slots: old once, right after the refill",
    seen_in=("compressed-tensors#361",),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="a reload of the same checkpoint; UVA, which has no second copy",
    modes=("prefetch",),
    workload="reload-changed",
    before_start=_reload_keeps_slots,
)

RELOAD_SKIPS_RESIDENT = Fault(
    name="reload-skips-resident",
    summary="a reload writes what is offloaded; what is resident keeps the old checkpoint's bytes",
    seen_in=("vllm#54477",),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="a reload of the same checkpoint",
    workload="reload-changed",
    before_start=_reload_skips_resident,
)

RELOAD_READS_FIRST_CHECKPOINT = Fault(
    name="reload-reads-first-checkpoint",
    summary="a reload reads the checkpoint that was loaded first, whatever path it is given",
    seen_in=("vllm#32718",),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="a reload of the same checkpoint",
    workload="reload-changed",
    before_start=_reload_the_first,
)

RELOAD_MAKES_RESIDENT = Fault(
    name="reload-makes-resident",
    summary="a reload puts new tensors on the device and does not offload them; its books stay",
    seen_in=("vllm#32991",),
    defect_class="E",
    killed_by=("effect", "memory"),
    blind="tokens, logs",
    modes=("uva", "uva-copy"),
    workload="reload-same",
    before_start=_reload_makes_resident,
)

PATCH_MISSES_MASTER = Fault(
    name="patch-misses-master",
    summary="a sparse patch writes the slot but not the host copy: gone with the next refill",
    seen_in=("compressed-tensors#224",),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="one token after the patch; UVA, which has no second copy",
    modes=("prefetch",),
    offloads={"prefetch": A_SLOT_EACH},
    workload="patch",
    before_start=_patch_misses_master,
)

PATCH_V2_NOT_FORWARDED = Fault(
    name="patch-v2-not-forwarded",
    summary="runner V2 takes a sparse patch and does nothing with it",
    seen_in=("vllm#42673",),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="runner V1; a test that only asks whether the call returns",
    runners=("v2",),
    workload="patch",
    before_start=_patch_nothing_in_v2,
)

PATCH_WRONG_INDEX = Fault(
    name="patch-wrong-index",
    summary="a sparse patch is written one place further than its flat indices say",
    seen_in=("vllm#53751",),
    defect_class="D",
    killed_by=("integrity",),
    blind="whether any value changed",
    workload="patch",
    before_start=_patch_next_index,
)
