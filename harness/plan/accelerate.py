"""What accelerate's offload must do to a model: transformers' parameters, and the map over them.

Written from accelerate's documented semantics; knows no engine, no torch and no checkpoint bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.core import Expectation, ModelSpec, Setting

from .shapes import ParamShape, effective_dtype, model_size, parameter_shapes

HOME = "cpu"
"""Device that a model computes on unless another is asked for."""
OFFLOADED_EVERYWHERE = "disk"
_HALVES = {"gate_up_proj": ("gate_proj", "up_proj"), "w13": ("w1", "w3")}


def expect_hooks(setting: Setting, model: ModelSpec) -> Expectation:
    """What a run of `setting` on `model` must show under accelerate.

    Raises:
        SettingError: the model's parameters cannot be computed.
    """
    offload = setting.offload
    backend = offload.resolved_backend
    params = unfused_shapes(model, dtype=effective_dtype(setting, model))
    device = str(setting.engine_args.get("device", HOME))
    chosen: Sequence[ParamShape] = ()
    if backend in ("cpu_offload", "disk_offload"):
        chosen = params
    elif backend == "device_map":
        is_tied = bool(model.config.get("tie_word_embeddings", False))
        chosen = [
            param
            for param in params
            if all(
                is_away(name, offload.device_map, device) for name in _names(param, is_tied=is_tied)
            )
        ]
    return Expectation(
        runner=setting.runner,
        backend=backend,
        offloaded_params=tuple(p.name for p in chosen),
        offloaded_layers=tuple(
            dict.fromkeys(p.layer_idx for p in chosen if p.layer_idx is not None)
        ),
        offloaded_bytes=sum(p.num_bytes for p in chosen),
        ignored_requests=offload.ignored_requests,
        unmatched_selectors=_unmatched(setting, params),
        all_params=tuple(p.name for p in params),
    )


def unfused_shapes(model: ModelSpec, *, dtype: str | None = None) -> tuple[ParamShape, ...]:
    """Every parameter of a model as transformers names it; a tied output matrix is none of its own.

    Args:
        model: needs only its architecture, config and dtype.
        dtype: computes in this dtype instead of the model's own.

    Raises:
        SettingError: the architecture or dtype is unknown, or the config lacks a size.
    """
    return tuple(
        part for param in parameter_shapes(model, dtype=dtype) for part in _parts(param, model)
    )


def is_away(name: str, places: Mapping[str, str], device: str) -> bool:
    """Whether a map takes a parameter off the device that computes.

    The longest entry that names the parameter or a module around it decides. `disk` is always
    away, `cpu` where another device computes. A map to one single place is no offload at all
    unless that place is the disk: the model is moved there and computes there.

    Args:
        name: the parameter's full name.
        places: module name (`""` is the whole model) -> `cpu`, `disk` or a device.
        device: the device that computes.
    """
    around = [key for key in places if key == "" or f"{name}.".startswith(f"{key}.")]
    if not around:
        return False
    place = places[max(around, key=len)]
    is_single = set(places.values()) == {HOME}
    return place == OFFLOADED_EVERYWHERE or (place == HOME and device != HOME and not is_single)


def _parts(param: ParamShape, model: ModelSpec) -> Iterator[ParamShape]:
    """The unfused parameters that one of vLLM's is made of; most are one and the same."""
    head, _, _ = param.name.rpartition(".")
    head, _, segment = head.rpartition(".")
    rows: dict[str, int] = {}
    if segment == "qkv_proj":
        heads = model_size(model, "num_attention_heads")
        kv_heads = model_size(model, "num_key_value_heads", heads)
        each = param.shape[0] // (heads + 2 * kv_heads)
        rows = {"q_proj": heads * each, "k_proj": kv_heads * each, "v_proj": kv_heads * each}
    elif segment in _HALVES:
        rows = dict.fromkeys(_HALVES[segment], param.shape[0] // 2)
    if not rows:
        yield replace(
            param,
            name=param.name.replace(".short_conv.", ".conv."),
            relative_name=param.relative_name.replace("short_conv.", "conv."),
        )
    for part, num_rows in rows.items():
        yield ParamShape(
            name=f"{head}.{part}.weight",
            layer_idx=param.layer_idx,
            relative_name=param.relative_name.replace(segment, part),
            shape=(num_rows, *param.shape[1:]),
            dtype=param.dtype,
        )


def _names(param: ParamShape, *, is_tied: bool) -> tuple[str, ...]:
    """All names of a parameter: a tied one stays where any of them keeps it."""
    if is_tied and param.name == "model.embed_tokens.weight":
        return (param.name, "lm_head.weight")
    return (param.name,)


def _unmatched(setting: Setting, params: Sequence[ParamShape]) -> tuple[str, ...]:
    """Entries of the map that no parameter is under, and buffers that no model here has."""
    names = [*(p.name for p in params), "lm_head.weight"]
    buffers = ("model.rotary_emb",)
    lost = [
        key
        for key in setting.offload.device_map
        if key and key not in buffers and not any(f"{n}.".startswith(f"{key}.") for n in names)
    ]
    if setting.engine_args.get("offload_buffers") and not setting.offload.is_none:
        lost.append("offload_buffers")
    return tuple(sorted(lost))
