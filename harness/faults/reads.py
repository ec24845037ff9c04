"""Faults of reading: compute takes its weights from a place that does not hold them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from harness.engines.base import EngineModules

from .base import Fault
from .patch import replace_name

Forward = Callable[..., Any]
CONV = "short_conv.conv.weight"
"""A weight that its layer reads itself, as transformers' does; no module of its own is called."""


def _bypass_at_decode(modules: EngineModules) -> None:
    """Steps whose queries all have length 1 call the layer's own forward, not the hooked one."""
    steps = _watch_decodes(modules)
    prefetch: Any = modules.module("offloader.prefetch").PrefetchOffloader
    copying: Any = modules.module("offloader.uva").UVAOffloader
    hook_prefetch, hook_copy = prefetch._prefetching, copying._copying

    def prefetching(self: Any, index: int, original: Forward) -> Forward:
        hooked = hook_prefetch(self, index, original)

        def forward(*args: Any, **kwargs: Any) -> Any:
            chosen = original if steps.is_decode else hooked
            return chosen(*args, **kwargs)

        return forward

    def make_copying(self: Any, module: Any, names: list[str], original: Forward) -> Forward:
        hooked, device = hook_copy(self, module, names, original), self.device
        module_ref = weakref.ref(module)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not steps.is_decode:
                return hooked(*args, **kwargs)
            return _with_placeholders(module_ref(), names, device, original, args, kwargs)

        return forward

    replace_name(prefetch, "_prefetching", prefetching)
    replace_name(copying, "_copying", make_copying)


def _bypass_conv_at_decode(modules: EngineModules) -> None:
    """The same of the convolutions' own weight only: the rest of the layer comes as it must."""
    steps = _watch_decodes(modules)
    moving: Any = modules.module("offloader.module_offloader").ModuleOffloader
    copying: Any = modules.module("offloader.uva").UVAOffloader
    onload, hook_copy = moving.start_onload, copying._copying

    def start_onload(self: Any) -> None:
        copies = self.host_copies
        if steps.is_decode:
            self.host_copies = {name: c for name, c in copies.items() if name != CONV}
        try:
            onload(self)
        finally:
            self.host_copies = copies

    def make_copying(self: Any, module: Any, names: list[str], original: Forward) -> Forward:
        hooked, device = hook_copy(self, module, names, original), self.device
        if CONV not in names:
            return cast("Forward", hooked)
        others = hook_copy(self, module, [name for name in names if name != CONV], original)
        module_ref = weakref.ref(module)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not steps.is_decode:
                return hooked(*args, **kwargs)
            return _with_placeholders(module_ref(), [CONV], device, others, args, kwargs)

        return forward

    replace_name(moving, "start_onload", start_onload)
    replace_name(copying, "_copying", make_copying)


def _watch_decodes(modules: EngineModules) -> SimpleNamespace:
    """`is_decode` of either runner's step: whether its queries all have length 1."""
    steps = SimpleNamespace(is_decode=False)
    for role in ("runner.v1", "runner.v2"):
        runner = modules.module(role).GPUModelRunner
        replace_name(runner, "execute_model", _noting(runner.execute_model, steps))
    return steps


def _noting(plain: Forward, steps: SimpleNamespace) -> Forward:
    def execute_model(self: Any, step: Any, *args: Any) -> Any:
        steps.is_decode = all(row.num_tokens == 1 for row in step.rows)
        return plain(self, step, *args)

    return execute_model


def _with_placeholders(
    module: Any, names: list[str], device: Any, original: Forward, args: Any, kwargs: Any
) -> Any:
    """Compute from the zeros that stand in device memory while a parameter is away."""
    params = [module.get_parameter(name) for name in names]
    away = [param.data for param in params]
    for param, data in zip(params, away, strict=True):
        param.data = device.empty(data.shape, data.dtype, kind="state").zero_()
    try:
        return original(*args, **kwargs)
    finally:
        for param, data in zip(params, away, strict=True):
            param.data = data


def _tie_by_pointer(modules: EngineModules) -> None:
    """Of a tied model, parameters with the same pointer and shape are taken for one tensor."""
    tied = SimpleNamespace(is_on=False, num_modules=0)
    shape: Any = modules.module("models.shape").ModelShape
    from_hf = shape.from_hf.__func__

    def noting_from_hf(cls: Any, config: Any) -> Any:
        found = from_hf(cls, config)
        tied.is_on = found.is_tied
        return found

    replace_name(shape, "from_hf", classmethod(noting_from_hf))
    _tie_slots(modules.module("offloader.module_offloader"), tied)
    _tie_placeholders(modules.module("offloader.uva"), tied)


def _tie_slots(owner: Any, tied: SimpleNamespace) -> None:
    """Prefetch: modules of one slot have one pointer, so the first one's host copy serves all."""
    plain = owner.ModuleOffloader.assign_slot
    copies: dict[Any, Any] = {}

    def assign_slot(self: Any, slot_idx: int, pool: Any) -> None:
        plain(self, slot_idx, pool)
        for name in self.host_copies if tied.is_on else ():
            param = self.module.get_parameter(name)
            key = (param.data_ptr(), param.shape)
            self.host_copies[name] = copies.setdefault(key, self.host_copies[name])

    replace_name(owner.ModuleOffloader, "assign_slot", assign_slot)


def _tie_placeholders(owner: Any, tied: SimpleNamespace) -> None:
    """Copy on forward: a parameter that is away is an empty placeholder, whose pointer is 0."""
    plain = owner.UVAOffloader._copying
    copies: dict[Any, Any] = {}

    def copying(self: Any, module: Any, names: list[str], original: Forward) -> Forward:
        if not tied.is_on:
            hooked: Forward = plain(self, module, names, original)
            return hooked
        module_ref: Any = weakref.ref(module)
        device = self.device
        tied.num_modules += 1
        is_first = tied.num_modules == 1

        def forward(*args: Any, **kwargs: Any) -> Any:
            if is_first:
                copies.clear()
            living = module_ref()
            params = {name: living.get_parameter(name) for name in names}
            for name, param in params.items():
                host_copy = param._vllm_offloaded_cpu_data
                param.data = host_copy.new_empty(0)
                key = (param.data_ptr(), host_copy.shape)
                if key not in copies:
                    copies[key] = device.empty(host_copy.shape, host_copy.dtype, kind="state")
                    device.copy_async(copies[key], host_copy, site=f"uva_onload.{name}")
                param.data = copies[key]
            try:
                return original(*args, **kwargs)
            finally:
                for param in params.values():
                    param.data = param._vllm_offloaded_cpu_data

        return forward

    replace_name(owner.UVAOffloader, "_copying", copying)


DECODE_BYPASSES_HOOK = Fault(
    name="decode-bypasses-hook",
    summary="for queries of length 1 a layer reads its weights directly; its hook is not run",
    seen_in=("transformers#46831",),
    defect_class="F",
    killed_by=("tokens", "integrity"),
    blind="logprobs of the prompt and the first token; UVA views, which have no onload hook",
    modes=("uva-copy", "prefetch"),
    before_start=_bypass_at_decode,
)

DECODE_BYPASSES_HOOK_CONV = Fault(
    name="decode-bypasses-hook-conv",
    summary="for queries of length 1 a layer reads its convolution's weight where no hook put it",
    seen_in=("transformers#46831",),
    defect_class="F",
    killed_by=("tokens", "integrity"),
    blind="logprobs of the prompt and the first token; UVA views; models without convolutions",
    modes=("uva-copy", "prefetch"),
    model="seeded-lfm2",
    before_start=_bypass_conv_at_decode,
)

TIED_BY_POINTER = Fault(
    name="tied-by-pointer",
    summary="tied weights are told by their pointer, which parameters that are away share",
    seen_in=("accelerate#4083",),
    defect_class="F",
    killed_by=("integrity", "tokens"),
    blind="untied models; UVA views, whose pointers differ",
    modes=("uva-copy", "prefetch"),
    model="seeded-llama-tied",
    before_start=_tie_by_pointer,
)
