"""Races in plain words: whose bytes, which slot, and the wait that is not there, once per cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.core import OrderingTrace, Race
from harness.engines.base import EngineView

from .ordering import OrderingRecorder, RawRace
from .ranges import Access
from .timeline import read_timeline

if TYPE_CHECKING:
    import torch

HOST_ACCESSES = "reads and writes by host code: they are not declared"


class Namer:
    """Names addresses after the parameters, slots and buffers of a live engine, as it is now."""

    def __init__(self, view: EngineView) -> None:
        self._view = view
        self.slots = {
            buffer.data_ptr(): slot_idx
            for slot_idx, buffers in enumerate(view.pool_slots() or ())
            for buffer in buffers
        }
        """Address of each buffer of the pool -> its slot."""
        self._owners: dict[int, list[str]] = {}
        """Address -> every name that stands for it; several for a slot."""
        for name, tensor in _named_tensors(view):
            self._owners.setdefault(tensor.data_ptr(), []).append(short(name))

    def slot(self, race: RawRace) -> int | None:
        """The pool slot a race is about."""
        return self.slots.get(race.address)

    def layer(self, access: Access) -> int | None:
        """The layer that reads, or whose bytes a copy takes."""
        if access.source is None:
            return self._view.layer_of(f"{access.site}.")
        names = self._owners.get(access.source, [])
        return self._view.layer_of(f"model.{names[0]}") if names else None

    def owner(self, race: RawRace, access: Access) -> str:
        """Name of what one side of a race means by the bytes; empty when it is not known."""
        names = self._owners.get(race.address, [])
        if access.source is not None:
            wanted = self._owners.get(access.source, [])
            return next((name for name in wanted if name in names), "")
        here = layer_prefix(self._view, f"{access.site}.")
        if here is None:
            return names[0] if len(names) == 1 else ""
        return next((n for n in names if layer_prefix(self._view, f"model.{n}") == here), "")

    def resource(self, race: RawRace) -> str:
        """`slot 0 of layers.3.mlp.down_proj.weight`, a tensor's name, or its kind of memory."""
        if race.allocation.owner() is None:
            return f"freed {race.allocation.kind} memory"
        first, second = race.conflict.first, race.conflict.second
        reader = second if first.is_write else first
        name = self.owner(race, reader) or self.owner(race, first)
        slot = self.slot(race)
        if slot is None:
            return name or f"{race.allocation.kind} memory"
        return f"slot {slot} of {name}" if name else f"slot {slot}"

    def module(self, race: RawRace) -> str:
        """The resource with the layer alone: `slot 0 of layers.3`."""
        resource, slot = self.resource(race), self.slot(race)
        name = resource.removeprefix(f"slot {slot} of ")
        layer = layer_prefix(self._view, f"model.{name}")
        return resource if slot is None or layer is None else f"slot {slot} of {layer}"


def read_ordering(view: EngineView, recorder: OrderingRecorder) -> OrderingTrace:
    """What the recorder saw so far, named after the live engine."""
    namer = Namer(view)
    races: dict[tuple[object, ...], Race] = {}
    for raw in recorder.races.values():
        first, second = raw.conflict.first, raw.conflict.second
        place: tuple[object, ...] = (namer.module(raw),)
        if namer.slot(raw) is None:
            place = (*place, first.site, second.site)
        key = (raw.conflict.kind, first.stream_name, second.stream_name, *place)
        race = races.get(key)
        if race is None:
            races[key] = _race(raw, namer)
        else:
            races[key] = replace(race, count=race.count + raw.count)
    unseen = [HOST_ACCESSES]
    if recorder.num_foreign:
        unseen.append(f"{recorder.num_foreign} accesses to memory the device did not allocate")
    if recorder.num_causes_dropped:
        unseen.append(f"{recorder.num_causes_dropped} further races between other sites")
    return OrderingTrace(
        num_work=recorder.num_work,
        num_copies=recorder.num_copies,
        num_checked=recorder.num_checked,
        num_pool_checked=recorder.num_pool_checked,
        races=tuple(races.values()),
        not_observed=tuple(unseen),
        timeline=read_timeline(recorder.timeline.last_complete(), namer.slots, namer.layer),
    )


def _race(raw: RawRace, namer: Namer) -> Race:
    conflict = raw.conflict
    first, second = conflict.first, conflict.second
    verb = "reads"
    if second.is_write:
        verb = "overwrites" if second.copy_idx else "writes"
    awaited = f"copy {first.copy_idx}" if first.copy_idx else f"compute ({first.site})"
    who = f"copy {second.copy_idx}" if second.copy_idx else "compute"
    return Race(
        kind=conflict.kind,
        resource=namer.resource(raw),
        first_site=first.site,
        second_site=second.site,
        first_stream=first.stream_name,
        second_stream=second.stream_name,
        missing=f"{who} {verb} {namer.module(raw)} without waiting for {awaited}",
        count=raw.count,
    )


def _named_tensors(view: EngineView) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters where they compute, their host copies, and tensors that modules merely hold."""
    import torch

    modules = dict(view.model.named_modules())
    names = {id(module): name for name, module in modules.items()}
    for name, param in view.model.named_parameters():
        yield name, param.data
        if (copy := view.host_copy(param)) is not None:
            yield name, copy
    for item in view.offloaded_modules():
        for name, copy in item.host_copies.items():
            yield f"{names.get(id(item.module), '')}.{name}", copy
    for prefix, module in modules.items():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield f"{prefix}.{name}".lstrip("."), value


def short(name: str) -> str:
    """A parameter's name without the model's own prefix."""
    return name.removeprefix("model.")


def layer_prefix(view: EngineView, name: str) -> str | None:
    """`layers.3` for anything of that layer."""
    layer = view.layer_of(name)
    return None if layer is None else f"layers.{layer}"
