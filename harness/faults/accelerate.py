"""Faults of accelerate's hooks: what is on disk, which weights a hook brings in, what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from harness.core import HarnessError, OffloadConfig
from harness.engines.base import EngineView

from .base import ACCELERATE_MODES, Fault, Mode
from .patch import replace_name

ENGINES = ("accelerate",)
PART = "mlp.up_proj"
"""Module of a layer whose hook is meddled with."""


def _layer_names(view: EngineView, part: str) -> dict[int, str]:
    """Layer -> full name of that part's weight, for every layer where it is offloaded."""
    found = {}
    for name, param in view.model.named_parameters():
        layer = view.layer_of(name)
        is_part = name.endswith(f".{part}.weight")
        if layer is not None and is_part and view.host_copy(param) is not None:
            found[layer] = name
    return found


def _layers(names: dict[int, str], fault: str) -> list[int]:
    """The layers in order.

    Raises:
        HarnessError: there is none.
    """
    if not names:
        raise HarnessError(
            f"fault {fault!r} found no offloaded {PART} to damage: ask for an offload that holds "
            "at least one decoder layer"
        )
    return sorted(names)


def _zero_file(view: Any) -> str:
    names = {}
    for layer, name in _layer_names(view, PART).items():
        if view.space_of(view.host_copy(dict(view.model.named_parameters())[name])) == "disk":
            names[layer] = name
    first = _layers(names, "disk-copy-damaged")[0]
    chosen = names[first]  # what is wrong early is wrong in all that follows
    view.claim_copy(chosen).zero_()
    return f"the file that holds {chosen} is zeroed"


def _take_next_layers_weights(view: Any) -> str:
    names = _layer_names(view, PART)
    layer, *others = _layers(names, "weights-of-another-layer")
    if not others:
        raise HarnessError("fault 'weights-of-another-layer' needs two offloaded layers")
    hook = view.holder(names[layer]).hook
    replace_name(hook, "weights_map", view.holder(names[others[0]]).hook.weights_map)
    return f"{names[layer]} is brought in from {names[others[0]]}"


def _leave_behind(view: Any) -> str:
    names = _layer_names(view, PART)
    chosen = names[_layers(names, "weights-left-behind")[0]]

    def post_forward(module: object, output: object) -> object:
        """Take nothing out again."""
        del module
        return output

    replace_name(view.holder(chosen).hook, "post_forward", post_forward)
    return f"{chosen} stays on the device once it was used"


def _bypass_conv_at_decode(view: Any) -> str:
    """Queries of length 1 are computed as they were before transformers ran the hook by force."""
    convs = [each for each in view.model.modules() if type(each).__name__ == "Lfm2ShortConv"]
    if not convs or not hasattr(type(convs[0]).forward, "__wrapped__"):
        raise HarnessError(
            "fault 'conv-hook-not-forced' found no convolution whose hook is run by force: ask for "
            "an Lfm2ForCausalLM, in a release of transformers that does so"
        )
    for module in convs:
        owner = "_old_forward" if hasattr(module, "_old_forward") else "forward"
        bare = MethodType(type(module).forward.__wrapped__, module)
        replace_name(module, owner, _by_length(bare, getattr(module, owner)))
    return f"{len(convs)} convolutions read their weight without its hook at decode"


def _by_length(bare: Callable[..., Any], forced: Callable[..., Any]) -> Callable[..., Any]:
    def forward(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = bare if hidden_states.shape[1] == 1 else forced
        return chosen(hidden_states, *args, **kwargs)

    return forward


def _unless_on_disk(offload: OffloadConfig) -> str | None:
    if offload.resolved_backend == "disk_offload" or "disk" in offload.device_map.values():
        return None
    return "no module of the device map is on disk"


_DISK_MODES: tuple[Mode, ...] = ("disk_offload", "device_map")

DISK_COPY_DAMAGED = Fault(
    name="disk-copy-damaged",
    summary="one file of the offload folder, of the first layer there, is zeroed after the start",
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="effect, placement, memory, logs: the file has the size it must have",
    engines=ENGINES,
    modes=_DISK_MODES,
    only_if=_unless_on_disk,
    after_start=_zero_file,
)

WEIGHTS_OF_ANOTHER_LAYER = Fault(
    name="weights-of-another-layer",
    summary="one module's hook brings in the weights of the same module in another layer",
    defect_class="B",
    killed_by=("integrity", "tokens"),
    blind="memory, of what is on disk: the bytes are as many",
    engines=ENGINES,
    modes=ACCELERATE_MODES,
    after_start=_take_next_layers_weights,
)

WEIGHTS_LEFT_BEHIND = Fault(
    name="weights-left-behind",
    summary="one module's weights stay on the device after its forward",
    defect_class="E",
    killed_by=("memory", "placement"),
    blind="tokens: the weights are right",
    engines=ENGINES,
    modes=ACCELERATE_MODES,
    after_start=_leave_behind,
)

CONV_HOOK_NOT_FORCED = Fault(
    name="conv-hook-not-forced",
    summary="for queries of length 1 a convolution's weight is read and its hook is not run",
    seen_in=("transformers#46831",),
    defect_class="F",
    killed_by=("tokens", "integrity"),
    blind="the prompt and the first token; models without convolutions, and those not offloaded",
    engines=ENGINES,
    modes=ACCELERATE_MODES,
    model="seeded-lfm2",
    after_start=_bypass_conv_at_decode,
)
