"""From a setting to a live model under accelerate's hooks: arguments, loading, dispatch."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core import DTYPE_BYTES, HarnessError, Json, Setting, Workload

from .base import EngineRefused
from .capabilities import ARCHITECTURES

if TYPE_CHECKING:
    from torch import nn

BACKENDS = ("none", "cpu_offload", "disk_offload", "device_map")
LOADERS = ("accelerate", "from_pretrained")
INSTRUMENTS = ("integrity", "integrity-full")
_ARGS: dict[str, tuple[type, tuple[str, ...]]] = {
    "device": (str, ("cpu", "cuda")),
    "dtype": (str, ("auto", *DTYPE_BYTES)),
    "loader": (str, LOADERS),
    "offload_buffers": (bool, ()),
    "preload_module_classes": (list, ()),
    "attn_implementation": (str, ()),
}
"""Engine argument -> its type, and what it may be."""


def require(name: str) -> Any:
    """Import a package of the engine's.

    Raises:
        HarnessError: the interpreter has none.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise HarnessError(
            f"engine 'accelerate' needs torch, transformers and accelerate, and {sys.executable} "
            f"cannot import {name} ({error}): install them there"
        ) from error


def _preload() -> None:
    """Import what every launch needs, so that a fork of this process has it; or leave it."""
    names = ("accelerate", "transformers", "transformers.models.llama.modeling_llama")
    with contextlib.suppress(ImportError):
        for name in names:
            importlib.import_module(name)


_preload()


def read_args(setting: Setting, workload: Workload) -> dict[str, Any]:
    """The engine's arguments with their defaults.

    Raises:
        EngineRefused: the setting asks for something this engine does not have.
    """
    backend, given = setting.offload.resolved_backend, setting.engine_args
    refusals = (
        (setting.runner is not None, f"runner={setting.runner!r}: accelerate has no model runners"),
        (setting.multiprocessing, "multiprocessing=True: accelerate has no engine core"),
        (setting.server, "server=True: accelerate is no server"),
        (not setting.enforce_eager, "enforce_eager=False: accelerate's hooks run eagerly"),
        (backend not in BACKENDS, f"offload backend {backend!r} must be one of {BACKENDS}"),
        (
            workload.model.architecture not in ARCHITECTURES,
            f"architecture={workload.model.architecture!r} must be one of {ARCHITECTURES}",
        ),
        (
            workload.sampling_params.temperature != 0,
            f"temperature={workload.sampling_params.temperature!r} must be 0: answers are greedy",
        ),
    )
    for is_refused, text in refusals:
        if is_refused:
            raise EngineRefused(text)
    for name in setting.instruments:
        if name not in INSTRUMENTS:
            raise EngineRefused(
                f"instruments={name!r}: accelerate's copies are synchronous, there is nothing "
                f"to see; known: {', '.join(INSTRUMENTS)}"
            )
    for name, value in given.items():
        _check_arg(name, value)
    args = {"device": "cpu", "loader": "accelerate", "dtype": workload.model.dtype, **given}
    _check_places(setting.offload.device_map, args)
    if args["loader"] == "from_pretrained" and backend not in ("none", "device_map"):
        raise EngineRefused(
            f"loader='from_pretrained' with offload_backend={backend!r}: from_pretrained offloads "
            "by a device_map only"
        )
    return args


def _check_arg(name: str, value: Json) -> None:
    if name not in _ARGS:
        raise EngineRefused(f"unknown engine argument {name!r}; known: {', '.join(_ARGS)}")
    kind, choices = _ARGS[name]
    if not isinstance(value, kind) or (choices and value not in choices):
        wanted = f"one of {', '.join(choices)}" if choices else f"of type {kind.__name__}"
        raise EngineRefused(f"engine argument {name}={value!r} must be {wanted}")


def _check_places(places: Mapping[str, str], args: Mapping[str, Any]) -> None:
    """Refuse a map that has unknown places, or leads compute elsewhere than `device` says."""
    others = {place for place in places.values() if place not in ("cpu", "disk")}
    for place in sorted(others):
        is_cuda = place.isdigit() or place == "cuda" or place.startswith("cuda:")
        if not is_cuda or args["device"] != "cuda":
            raise EngineRefused(
                f"device_map place {place!r} with device={args['device']!r}: places are cpu, disk "
                "and, with device='cuda', cuda:N"
            )
    if places and args["device"] == "cuda" and args["loader"] == "from_pretrained" and not others:
        raise EngineRefused(
            "loader='from_pretrained' computes on a device of its map: with device='cuda' the "
            "device_map must name one, e.g. cuda:0"
        )


def load_model(
    setting: Setting, workload: Workload, args: Mapping[str, Any], folder: Path
) -> nn.Module:
    """Load the checkpoint and put accelerate's hooks on it as the setting asks.

    Raises:
        EngineRefused: accelerate or transformers refuses the combination, in its own words.
    """
    torch, transformers = require("torch"), require("transformers")
    transformers.utils.logging.disable_progress_bar()
    dtype, backend = str(args["dtype"]), setting.offload.resolved_backend
    kwargs: dict[str, Any] = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype)}
    if "attn_implementation" in args:
        kwargs["attn_implementation"] = args["attn_implementation"]
    is_mapped = args["loader"] == "from_pretrained" and backend == "device_map"
    if is_mapped:
        kwargs |= {
            "device_map": _places(setting),
            "offload_folder": str(folder),
            "offload_buffers": bool(args.get("offload_buffers", False)),
        }
    load = getattr(transformers, workload.model.architecture).from_pretrained
    try:
        model: nn.Module = load(workload.model.path, **kwargs).eval()
        if not is_mapped:
            model = _offload(model, setting, args, folder)
    except ValueError as error:
        raise EngineRefused(str(error)) from error
    return model


def _offload(
    model: nn.Module, setting: Setting, args: Mapping[str, Any], folder: Path
) -> nn.Module:
    torch, accelerate = require("torch"), require("accelerate")
    backend = setting.offload.resolved_backend
    device = "cuda:0" if args["device"] == "cuda" else "cpu"
    if backend == "none":
        return model.to(device)
    names = ("offload_buffers", "preload_module_classes")
    more = {name: args[name] for name in names if name in args}
    calls = {
        "cpu_offload": partial(accelerate.cpu_offload, execution_device=torch.device(device)),
        "disk_offload": partial(
            accelerate.disk_offload, offload_dir=folder, execution_device=torch.device(device)
        ),
        "device_map": partial(
            accelerate.dispatch_model,
            device_map=_places(setting),
            main_device=device,
            offload_dir=folder,
        ),
    }
    offloaded: nn.Module = calls[backend](model, **more)
    return offloaded


def _places(setting: Setting) -> dict[str, str | int]:
    """The device map as accelerate takes it; a number is a device's index."""
    places = setting.offload.device_map.items()
    return {name: int(place) if place.isdigit() else place for name, place in places}


def tied_names(model: Any) -> dict[str, str]:
    """Name of each tied parameter -> the name it goes by, by the model's own statement."""
    if hasattr(model, "all_tied_weights_keys"):
        return dict(model.all_tied_weights_keys)
    ties = getattr(model, "_tied_weights_keys", None) or {}
    if not getattr(model.config, "tie_word_embeddings", False):
        return {}
    return (
        dict(ties) if isinstance(ties, dict) else dict.fromkeys(ties, "model.embed_tokens.weight")
    )


@contextlib.contextmanager
def said_by_engine() -> Iterator[list[str]]:
    """What accelerate and transformers warn of meanwhile, in order; it is printed too."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("accelerate", "transformers")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield said
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        said += [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
        sys.stdout.write("".join(f"{text}{os.linesep}" for text in said))
