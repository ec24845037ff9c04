"""How a model is spread over workers, in the words of a setting's id: `tp2`, `pp2`."""

from __future__ import annotations

from collections.abc import Mapping

from .codec import Json

SIZES = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp"}
"""Engine argument -> its word."""


def name_spread(engine_args: Mapping[str, Json]) -> tuple[list[str], dict[str, Json]]:
    """Words for the sizes above 1 among `engine_args`, and the arguments without them."""
    sizes = {name: engine_args.get(name) for name in SIZES}
    named = {n: size for n, size in sizes.items() if isinstance(size, int) and size > 1}
    words = [f"{SIZES[name]}{size}" for name, size in named.items()]
    return words, {name: value for name, value in engine_args.items() if name not in named}
