"""Comparisons of outputs that a test already has, with the signatures vLLM's own tests use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.core import ComparisonFailed, ComparisonVacuous


def check_outputs_equal(
    *,
    outputs_0_lst: Iterable[tuple[Sequence[int], str]],
    outputs_1_lst: Iterable[tuple[Sequence[int], str]],
    name_0: str,
    name_1: str,
) -> None:
    """Assert that two lists of (token ids, text) are equal, prompt by prompt.

    Raises:
        ComparisonFailed: naming the prompt, the position and both tokens.
        ComparisonVacuous: there was nothing to compare.
    """
    pairs = list(zip(outputs_0_lst, outputs_1_lst, strict=True))
    if not pairs:
        raise ComparisonVacuous("VACUOUS: no output was given: nothing was compared")
    for index, ((ids_0, text_0), (ids_1, text_1)) in enumerate(pairs):
        if list(ids_0) != list(ids_1):
            common = min(len(ids_0), len(ids_1))
            at = next((i for i in range(common) if ids_0[i] != ids_1[i]), common)
            raise ComparisonFailed(
                f"FAIL: prompt {index} differs at token {at}: {name_0} gave "
                f"{list(ids_0[at : at + 1])} in {text_0!r:.80}, {name_1} gave "
                f"{list(ids_1[at : at + 1])} in {text_1!r:.80}"
            )


Candidates = Sequence[Mapping[int, float]]


def check_logprobs_close(
    *,
    outputs_0_lst: Iterable[tuple[Sequence[int], str, Candidates]],
    outputs_1_lst: Iterable[tuple[Sequence[int], str, Candidates]],
    name_0: str,
    name_1: str,
) -> None:
    """Assert that at the first difference each side's token is among the other's candidates.

    Raises:
        ComparisonFailed: naming the prompt, the position and both tokens.
        ComparisonVacuous: there was nothing to compare.
    """
    pairs = list(zip(outputs_0_lst, outputs_1_lst, strict=True))
    if not pairs:
        raise ComparisonVacuous("VACUOUS: no output was given: nothing was compared")
    for index, ((ids_0, _, top_0), (ids_1, _, top_1)) in enumerate(pairs):
        for at, (token_0, token_1) in enumerate(zip(ids_0, ids_1, strict=False)):
            if token_0 == token_1:
                continue
            if token_0 not in top_1[at] or token_1 not in top_0[at]:
                raise ComparisonFailed(
                    f"FAIL: prompt {index} differs at token {at} beyond a near-tie: "
                    f"{name_0} gave {token_0}, {name_1} gave {token_1}"
                )
            break
