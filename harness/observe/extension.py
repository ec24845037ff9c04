"""What the harness mixes into an engine's worker, wherever that lives; JSON in, JSON out."""

from __future__ import annotations

import importlib
from typing import Any

from harness.core import Json, encode
from harness.engines.base import PLANTED, view_of

from .probe import read_probe
from .source import WeightPatch, WeightSource
from .weights import WeightRecorder


class ProbeExtension:
    """Methods reached by `collective_rpc`; `self` is the engine's own worker."""

    _harness_load_bytes = 0
    _harness_load_peak_bytes = 0
    _harness_is_asleep = False
    _harness_source: WeightSource | None = None
    """Where the weights are from since the last reload or patch; None: the configured model."""

    def harness_loaded(self) -> int:
        """Note the device bytes in use now and their peak, and watch reads from now on."""
        view = view_of(self)
        memory = view.memory()
        self._harness_load_bytes = memory.device_bytes
        self._harness_load_peak_bytes = memory.device_peak_bytes
        view.watch_reads()
        return self._harness_load_bytes

    def harness_probe(self) -> dict[str, Json]:
        """An encoded `ProbeSnapshot` of this worker."""
        data: dict[str, Json] = encode(
            read_probe(
                view_of(self),
                load_bytes=self._harness_load_bytes,
                load_peak_bytes=self._harness_load_peak_bytes,
            )
        )
        return data

    def harness_reload(self, path: str, argument: str) -> None:
        """Let the worker load other weights, and hold them against that checkpoint from now on.

        Args:
            path: checkpoint folder.
            argument: name of the worker's own argument for it.
        """
        worker: Any = self
        worker.reload_weights(**{argument: path})
        self._harness_source = WeightSource(folder=path)

    def harness_patch(self, seed: int, num_values: int, params: list[str]) -> None:
        """Let the worker overwrite `num_values` seeded values in each of `params`."""
        worker: Any = self
        view = view_of(self)
        source = self._harness_source or WeightSource(folder=str(view.effective_config["model"]))
        patch = WeightPatch(seed=seed, num_values=num_values, params=tuple(params))
        shapes = {name: tuple(param.shape) for name, param in view.model.named_parameters()}
        worker.apply_sparse_weight_patches(patch.values(shapes))
        self._harness_source = source.patched(patch)

    def harness_step(self) -> None:
        """Let recorders of weights begin anew: what they say next is of what comes next."""
        for observer in view_of(self).observers:
            if isinstance(observer, WeightRecorder):
                observer.begin_anew()

    def harness_asleep(self, is_asleep: bool) -> None:
        """Note whether weights are put away."""
        self._harness_is_asleep = is_asleep

    def harness_fault(self, planter: str, name: str) -> str:
        """Plant a fault in this live worker.

        Args:
            planter: `module:function` that takes the view and the name.
            name: the fault's.
        """
        module, _, function = planter.partition(":")
        return str(getattr(importlib.import_module(module), function)(view_of(self), name))

    def harness_ask(self, place: str, *args: Json) -> Json:
        """What `module:function` says of this live worker, given the view and `args`."""
        module, _, function = place.partition(":")
        return getattr(importlib.import_module(module), function)(view_of(self), *args)

    def harness_device(self) -> str:
        """Kind of the device this worker uses."""
        return view_of(self).device_name

    def harness_planted(self) -> list[str]:
        """Names of the faults that are planted in this process."""
        return list(PLANTED)
