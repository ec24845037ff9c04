"""Whether what is to be patched is there: of an engine's ranks each holds some parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.core import HarnessError, Json

from .base import EngineView

_ASK = f"{__name__}:held_of"


def held_of(view: EngineView, params: Sequence[str]) -> list[str]:
    """Those of `params` that this rank has."""
    mine = {name for name, _ in view.model.named_parameters()}
    return [name for name in params if name in mine]


def check_held(ask: Callable[[str, Sequence[Json]], Sequence[Json]], params: Sequence[str]) -> None:
    """Refuse to patch a parameter that no rank has: nothing would be written.

    Args:
        ask: calls a method of every rank's worker, with arguments; their answers.
        params: names of the parameters to be patched.

    Raises:
        HarnessError: naming the first that is nowhere.
    """
    answers = ask("harness_ask", (_ASK, list(params)))
    held = {name for each in answers if isinstance(each, list) for name in each}
    if missing := [name for name in params if name not in held]:
        raise HarnessError(
            f"step 'apply_sparse_weight_patches': params={missing[0]!r} is a parameter of no rank "
            f"of the model (of {len(answers)}); name those of the live model"
        )
