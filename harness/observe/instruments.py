"""Recorders inside an engine: put on its device before anything is loaded, read when probed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.core import IntegrityTrace, OrderingTrace, WeightReads
from harness.engines.base import EngineModules, EngineView, InternalMovedError

from .causes import read_ordering
from .copies import CopyRecorder
from .delay import delay_device
from .ordering import OrderingRecorder
from .poison import poison_device
from .rest import read_at_rest
from .source import WeightSource
from .weights import Reads, WeightRecorder

PACKED = ("weight_packed", "weight_scale", "weight_shape")
"""Ends of names of what holds a packed weight."""
MAKER = "get_device"
"""Name in the engine's `engine_core` module through which it makes its device."""


def install(instruments: Sequence[str], modules: EngineModules) -> Callable[[], None]:
    """Put recorders on every device that an engine of this process, or a fork of it, will make.

    Args:
        instruments: as in `Setting.instruments`.
        modules: the engine's modules.

    Returns:
        A function that leaves devices made later alone again.

    Raises:
        InternalMovedError: the engine makes its device elsewhere.
    """
    if not instruments:
        return lambda: None
    owner: Any = modules.module("engine_core")
    if not hasattr(owner, MAKER):
        raise InternalMovedError(f"{owner.__name__}.{MAKER}")
    original = getattr(owner, MAKER)

    def make_device(*args: Any, **kwargs: Any) -> Any:
        device = original(*args, **kwargs)
        attach(device, instruments)
        return device

    setattr(owner, MAKER, make_device)
    return lambda: setattr(owner, MAKER, original)


def attach(device: Any, instruments: Iterable[str]) -> None:
    """Put recorders on a device that has done nothing yet."""
    names = set(instruments)
    if names:
        device.observers.append(CopyRecorder())
    delay_device(device, names)
    if "poison" in names:
        poison_device(device)
    if "ordering" in names:
        device.observers.append(OrderingRecorder(device.allocation_of))
    if "integrity-full" in names:
        device.observers.append(WeightRecorder("full"))
    elif "integrity" in names:
        device.observers.append(WeightRecorder("sampled"))


def collect(view: EngineView) -> tuple[OrderingTrace | None, IntegrityTrace | None]:
    """What the recorders on a live engine's device have seen so far; None without a recorder.

    Where graphs hide what compute reads, the order is not known. Weights are hashed at rest there,
    and where nothing has computed since the recorder began.
    """
    ordering, integrity = None, None
    for observer in view.observers:
        if isinstance(observer, WeightRecorder) and not view.is_asleep:
            if view.sees_compute and observer.reads:
                integrity = read_integrity(view, observer)
            else:
                integrity = read_at_rest(view, expected_for(view))
        elif isinstance(observer, OrderingRecorder) and view.sees_compute:
            ordering = read_ordering(view, observer)
    return ordering, integrity


def read_integrity(view: EngineView, recorder: WeightRecorder) -> IntegrityTrace:
    """What compute read so far, beside what the checkpoint holds.

    What is not in the checkpoint (a derived table, random weights) is held against its own first
    read, and named in `not_observed`.
    """
    expected = expected_for(view, recorder.reads)
    unknown = [name for name in recorder.reads if name not in expected]
    slots = {
        buffer.data_ptr(): slot_idx
        for slot_idx, buffers in enumerate(view.pool_slots() or ())
        for buffer in buffers
    }
    return IntegrityTrace(
        mode=recorder.mode,
        num_reads=sum(seen.num_reads for seen in recorder.reads.values()),
        num_hashed=recorder.num_hashed,
        reads=tuple(
            _weight_reads(name, seen, expected.get(name), view.layer_of(name), slots)
            for name, seen in recorder.reads.items()
        ),
        not_observed=_held_against_first_read(unknown),
    )


def _held_against_first_read(names: list[str]) -> tuple[str, ...]:
    text = "{} is in no checkpoint: held against its own first read"
    if len(names) <= 3:
        return tuple(map(text.format, names))
    return (text.format(f"{names[0]}, as are {len(names) - 1} more,"),)


def _weight_reads(
    name: str, seen: Reads, known: str | None, layer: int | None, slots: dict[int, int]
) -> WeightReads:
    expected = seen.first if known is None else known
    return WeightReads(
        name=name,
        layer_idx=layer,
        expected=expected,
        digests=dict(seen.digests),
        slots={
            digest: slots[address]
            for digest, address in seen.places.items()
            if digest != expected and address in slots
        },
        is_first_read=known is None,
    )


def expected_for(view: EngineView, names: Iterable[str] | None = None) -> dict[str, str]:
    """Digest of what the checkpoint holds for each named parameter (None: all), if it does."""
    import torch

    from .checkpoint import expected_digests

    config = view.effective_config
    if names is None:
        names = [name for name, _ in view.model.named_parameters()]
    if not view.keeps_codes:
        names = [name for name in names if not name.endswith(PACKED)]
    if config.get("load_format") == "dummy":
        return {}
    dtype = getattr(torch, str(config["dtype"]))
    shapes = {name: tuple(param.shape) for name, param in view.model.named_parameters()}
    source = getattr(view.worker, "_harness_source", None) or WeightSource(
        folder=str(config["model"])
    )
    return expected_digests(source, names, dtype, shapes=shapes, part=view.tensor_part)
