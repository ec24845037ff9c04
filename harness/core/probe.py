"""What was true inside a live engine: runner, offloader, every parameter, pool and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .codec import Json
from .setting import Runner

Space = Literal["device", "host", "pinned", "disk", "meta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamPlacement:
    """Where one parameter's bytes really are."""

    name: str
    """Full dotted name, as `named_parameters()` gives it."""
    layer_idx: int | None
    """Decoder layer, None outside the stack."""
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    space: Space
    """Where the bytes of record live: `device`, or the host copy's space when offloaded."""
    is_offloaded: bool = False
    is_pinned: bool = False
    """The host copy is in pinned memory (asked of the live tensor)."""
    is_uva: bool = False
    """The parameter is a device-visible view of its host copy."""
    slot_idx: int | None = None
    """Slot of the buffer pool it computes from, found by address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferPoolInfo:
    """The static buffer pool of a prefetch offloader."""

    slot_capacity: int
    num_bytes: int
    slots: Mapping[int, int] = field(default_factory=dict)
    """Decoder layer index -> slot, read from the live objects."""
    refill_after: Mapping[int, int] = field(default_factory=dict)
    """Decoder layer index -> layer whose copy was seen to start after it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host bytes by the kernel's account, shared pages once (RSS) or by share (PSS)."""

    rss_bytes: int
    """Resident in the worker's process."""
    pss_bytes: int
    """The same, each shared page divided among those that share it."""
    group_rss_bytes: int
    """Resident in all processes of the worker's process group, pages counted once in each."""
    group_pss_bytes: int
    num_processes: int = 1
    """Of the group; those that could not be read are not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrace:
    """Bytes by the allocator's own account, not the offloader's."""

    device_bytes: int
    """In use after the last step."""
    device_peak_bytes: int
    """Highest so far, load included."""
    device_capacity_bytes: int | None = None
    device_load_bytes: int = 0
    """In use right after loading."""
    device_load_peak_bytes: int = 0
    """Highest until loading was done, before the first generate."""
    pinned_bytes: int = 0
    """Pinned host bytes in use, as they were asked for."""
    pinned_allocated_bytes: int | None = None
    """What the allocator took for them, rounding included; None where nobody can say."""
    host_bytes: int = 0
    """Pageable host bytes in use for weights."""
    granularity_bytes: int = 1
    """Allocator rounding; equality is judged to this times the number of tensors."""
    by_kind: Mapping[str, int] = field(default_factory=dict)
    """Device bytes by use: `weights`, `kv_cache`, `buffer_pool`, `state`."""
    process: HostMemory | None = None
    """Host memory of the worker's process and group; None where the kernel does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Two pieces of work on the same bytes with no order between them, once per cause."""

    kind: Literal["read-write", "write-read", "write-write"]
    """What the first did, then what the second did, in host order."""
    resource: str
    """The bytes, by name: `slot 0 of layers.3.mlp.down_proj.weight`."""
    first_site: str
    second_site: str
    first_stream: str
    second_stream: str
    missing: str
    """The edge that is not there: `compute reads slot 0 of layers.3 without waiting for copy 7`."""
    count: int = 1
    """How often it was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotEvent:
    """One copy into a slot of the buffer pool, or one module's compute on what the slot holds."""

    kind: Literal["copy", "read"]
    seq: int
    """Place among all launches, in host order."""
    slot_idx: int
    layer_idx: int
    """Decoder layer that reads, or whose bytes are copied."""
    stream: str
    is_race: bool = False
    """Some earlier access to the same bytes is not in order with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderingTrace:
    """What the happens-before recorder saw, whatever the schedule happened to be."""

    num_work: int
    """Launched pieces of work."""
    num_copies: int
    """Copies among them."""
    num_checked: int
    """Pairs of accesses to the same bytes that were checked for an order."""
    num_pool_checked: int = 0
    """Those among them in the prefetch buffer pool."""
    races: tuple[Race, ...] = ()
    not_observed: tuple[str, ...] = ()
    """What this recorder could not see, by name."""
    timeline: tuple[SlotEvent, ...] = ()
    """The last complete forward pass, after the copies that filled each slot before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightReads:
    """What one parameter's bytes were whenever compute read them."""

    name: str
    layer_idx: int | None
    expected: str
    """Digest of the checkpoint's bytes for this parameter, fused and converted alike."""
    digests: Mapping[str, int]
    """Digest seen at the moment of compute -> how often."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Wrong digest -> slot it was first read from."""
    is_first_read: bool = False
    """No checkpoint holds it: `expected` is only what its own first read saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityTrace:
    """Weights hashed at the moment of compute, or at rest."""

    mode: Literal["sampled", "full", "rest"]
    num_reads: int
    """Reads of a parameter by compute."""
    num_hashed: int
    """How many of them were hashed."""
    reads: tuple[WeightReads, ...] = ()
    not_observed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSnapshot:
    """One look inside a live engine; every field is read from live objects."""

    engine_version: str
    runner_class: str
    """`module.Class` of the live model runner."""
    runner: Runner | None
    """Version, told from the live class; None if the engine has none."""
    offloader_class: str
    """Class name of the live offloader, `NoopOffloader` when there is none."""
    reported_offloaded_bytes: int
    """The offloader's own count."""
    effective_config: Mapping[str, Json] = field(default_factory=dict)
    """Configuration the engine ended up with, flat."""
    env: Mapping[str, Json] = field(default_factory=dict)
    """Environment values as the engine cached them."""
    params: tuple[ParamPlacement, ...] = ()
    buffer_pool: BufferPoolInfo | None = None
    memory: MemoryTrace | None = None
    process_id: int = 0
    is_core_process: bool = False
    """True when read in an engine core process of its own."""
    ordering: OrderingTrace | None = None
    """None when the recorder was not asked for."""
    integrity: IntegrityTrace | None = None
    """None when hashing was not asked for."""
    drift: tuple[str, ...] = ()
    """Internals that could not be found, by name; anything here makes the run an ERROR."""
    warnings: tuple[str, ...] = ()
    """Warnings the engine itself gave about its configuration."""
    not_observed: tuple[str, ...] = ()
    """What could not be seen in this mode of the engine, by name."""
    step_idx: int = -1
    """Step of a lifecycle after which it was taken; -1 at the end."""
    sees_compute: bool = True
    """Recorders see each read by compute; not where graphs are replayed."""
    is_asleep: bool = False
    """The engine's weights are put away: there is nothing to hold them against."""
    rank: int = 0
    """Rank of the worker that was read, where a model is spread over several."""

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of the parameters found offloaded, summed one by one."""
        return sum(p.num_bytes for p in self.params if p.is_offloaded)
