"""Weights between steps, where compute cannot be watched: bytes of record, and slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from harness.core import IntegrityTrace, WeightReads
from harness.engines.base import EngineView

if TYPE_CHECKING:
    import torch

UNSEEN = "weights at the moment of compute: hashed at rest, after the last step"


def read_at_rest(view: EngineView, expected: Mapping[str, str]) -> IntegrityTrace:
    """Hash each parameter's bytes of record, and what each slot of the pool holds now.

    Args:
        view: a live engine that has nothing queued.
        expected: parameter name -> digest of the checkpoint's bytes.

    Returns:
        A read for each parameter, and for each buffer of each slot: it must hold the bytes of one
        of the parameters that compute from it.
    """
    from .weights import digest_of

    reads = []
    for name, tensor in records(view):
        if tensor.is_meta:  # nothing is there: it stays unhashed, which the judge will say
            continue
        digest = digest_of(tensor)
        known = expected.get(name)
        reads.append(
            WeightReads(
                name=name,
                layer_idx=view.layer_of(name),
                expected=digest if known is None else known,
                digests={digest: 1},
                is_first_read=known is None,
            )
        )
    reads += _slots(view, expected)
    return IntegrityTrace(
        mode="rest",
        num_reads=len(reads),
        num_hashed=len(reads),
        reads=tuple(reads),
        not_observed=(UNSEEN,),
    )


def records(view: EngineView) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter by its full name, and the tensor that holds its bytes of record."""
    names = {id(module): name for name, module in view.model.named_modules()}
    copies = {
        f"{names.get(id(item.module), '')}.{name}": copy
        for item in view.offloaded_modules()
        for name, copy in item.host_copies.items()
    }
    for name, param in view.model.named_parameters():
        copy = copies.get(name)
        yield name, param.data if copy is None else copy


def _slots(view: EngineView, expected: Mapping[str, str]) -> Iterator[WeightReads]:
    """What the buffers of the pool hold, each against all that compute from it.

    A slot is filled for its first module between steps; where layers differ in shape, it has
    buffers that this one has no use for, and that nothing reads before they are filled again.
    """
    from .weights import digest_of

    users, filled = dict[int, list[str]](), _filled(view)
    for name, param in view.model.named_parameters():
        users.setdefault(param.data_ptr(), []).append(name)
    for slot_idx, buffers in enumerate(view.pool_slots() or ()):
        for buffer in buffers:
            names = [name for name in users.get(buffer.data_ptr(), []) if name in expected]
            if not names or buffer.data_ptr() not in filled:
                continue
            digest = digest_of(buffer)
            holder = next((name for name in names if expected[name] == digest), names[0])
            yield WeightReads(
                name=holder,
                layer_idx=view.layer_of(holder),
                expected=expected[holder],
                digests={digest: 1},
                slots={} if digest == expected[holder] else {digest: slot_idx},
            )


def _filled(view: EngineView) -> set[int]:
    """Addresses of the buffers that the first module of each slot computes from."""
    first = {item.slot_idx: item for item in reversed(view.offloaded_modules())}
    return {
        param.data_ptr()
        for item in first.values()
        for name, param in item.module.named_parameters()
        if name in item.host_copies
    }
