"""Equivalent mutants: other code, the same meaning. A judge that objects to one is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from harness.core import OffloadConfig
from harness.engines.base import EngineModules

from .base import Fault
from .patch import replace_name


def _synchronize_before_layers(modules: EngineModules) -> None:
    layer: Any = modules.module("models.llama").DecoderLayer
    plain = layer.forward

    def forward(self: Any, *args: Any) -> Any:
        self.device.synchronize()
        return plain(self, *args)

    replace_name(layer, "forward", forward)


def _copy_in_chunks(modules: EngineModules) -> None:
    def start_onload(self: Any) -> None:
        self._wait_for_reader()
        with self.device.stream(self.copy_stream):
            for name, source in self.host_copies.items():
                middle = source.shape[0] // 2
                for part in (slice(None, middle), slice(middle, None)):
                    self.device.copy_async(
                        self.buffers[name][part], source[part],
                        site=f"prefetch.{self.module_index}.{name}",
                    )  # fmt: skip
            self.copy_stream.record_event(self._copy_done_event)
        self._is_copy_recorded = True

    replace_name(_module_offloader(modules), "start_onload", start_onload)


def _number_slots_backwards(modules: EngineModules) -> None:
    owner = _module_offloader(modules)
    plain = owner.assign_slot

    def assign_slot(self: Any, slot_idx: int, pool: Any) -> None:
        plain(self, pool.slot_capacity - 1 - slot_idx, pool)

    replace_name(owner, "assign_slot", assign_slot)


def _copy_synchronously(modules: EngineModules) -> None:
    owner = _module_offloader(modules)
    plain = owner.start_onload

    def start_onload(self: Any) -> None:
        plain(self)
        self.copy_stream.synchronize()

    replace_name(owner, "start_onload", start_onload)


def _choose_first_of_group(modules: EngineModules) -> None:
    def wrap_modules(self: Any, modules_generator: Iterable[Any]) -> list[Any]:
        found = []
        for module_index, module in enumerate(modules_generator):
            if module_index % self.group_size < self.num_in_group:
                self._offload_module(module_index, module)
            found.append(module)
        return found

    owner: Any = modules.module("offloader.prefetch").PrefetchOffloader
    replace_name(owner, "wrap_modules", wrap_modules)


class _Between:
    """A layer's device that does something between its attention and its MLP."""

    def __init__(self, device: Any, action: Callable[[], None]) -> None:
        self.device, self.action = device, action

    def launch(self, *args: Any, site: str, **kwargs: Any) -> Any:
        if site.endswith(".mlp"):
            self.action()
        return self.device.launch(*args, site=site, **kwargs)


def _refill_attention_early(modules: EngineModules) -> None:
    owner: Any = modules.module("offloader.prefetch").PrefetchOffloader

    def prefetching(self: Any, index: int, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            offloaders, device = self.module_offloaders, self.device
            here = offloaders[index]
            next_index = self._get_next_prefetch_index(index, self.prefetch_step, len(offloaders))
            following, layer = offloaders[next_index], here.module
            here.wait_for_onload()
            layer.device = _Between(device, lambda: _copy_part(following, is_attention=True))
            try:
                output = original(*args, **kwargs)
            finally:
                layer.device = device
            _copy_part(following, is_attention=False)
            following.copy_stream.record_event(following._copy_done_event)
            following._is_copy_recorded = True
            self._note_refill(index, next_index)
            return output

        return forward

    replace_name(owner, "_prefetching", prefetching)


def _copy_part(offloader: Any, *, is_attention: bool) -> None:
    """Copy what the attention reads, or the rest, after all compute queued so far."""
    offloader._wait_for_reader()
    with offloader.device.stream(offloader.copy_stream):
        for name, source in offloader.host_copies.items():
            if name.startswith(("self_attn.", "input_layernorm.")) == is_attention:
                offloader.device.copy_async(
                    offloader.buffers[name],
                    source,
                    site=f"prefetch.{offloader.module_index}.{name}",
                )


def _module_offloader(modules: EngineModules) -> Any:
    owner: Any = modules.module("offloader.module_offloader")
    return owner.ModuleOffloader


EXTRA_SYNCHRONISATION = Fault(
    name="extra-synchronisation",
    kind="equivalent",
    summary="the host waits for the whole device before every layer",
    before_start=_synchronize_before_layers,
)

COPIES_IN_CHUNKS = Fault(
    name="copies-in-chunks",
    kind="equivalent",
    summary="each weight is copied into its slot in two pieces",
    modes=("prefetch",),
    before_start=_copy_in_chunks,
)

OTHER_SLOT_NUMBERS = Fault(
    name="other-slot-numbers",
    kind="equivalent",
    summary="slots are numbered backwards; the same modules share a slot",
    modes=("prefetch",),
    before_start=_number_slots_backwards,
)

PREFETCH_EARLIER = Fault(
    name="prefetch-earlier",
    kind="equivalent",
    summary="a slot's attention weights are refilled while its MLP still computes; a whole layer "
    "earlier would overwrite a slot in use",
    modes=("prefetch",),
    before_start=_refill_attention_early,
)

SYNCHRONOUS_COPY = Fault(
    name="synchronous-copy",
    kind="equivalent",
    summary="the host waits for each copy, as it does for one from pageable memory",
    modes=("prefetch",),
    offloads={
        "prefetch": OffloadConfig(offload_group_size=1, offload_prefetch_step=3, pin_memory=False)
    },
    before_start=_copy_synchronously,
)

OTHER_LAYERS_SAME_BYTES = Fault(
    name="other-layers-same-bytes",
    kind="equivalent",
    summary="the first layer of each group is offloaded instead of the last",
    killed_by=("placement",),
    says="other layers",
    modes=("prefetch",),
    offloads={"prefetch": OffloadConfig(offload_group_size=2, offload_prefetch_step=1)},
    before_start=_choose_first_of_group,
)
