"""vLLM's answers and refusals as the harness keeps them; needs no vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.core import Logprobs, RequestOutput


def to_output(answer: Any) -> RequestOutput:
    """VLLM's answer as the harness keeps it."""
    completion = answer.outputs[0]
    token_ids = tuple(completion.token_ids)
    return RequestOutput(
        request_id=str(answer.request_id),
        step_idx=0,
        prompt_token_ids=tuple(answer.prompt_token_ids),
        token_ids=token_ids,
        logprobs=to_logprobs(token_ids, completion.logprobs),
        finish_reason=completion.finish_reason,
    )


def to_logprobs(token_ids: Sequence[int], rows: Any) -> Logprobs | None:
    """Rows of token id -> Logprob, best first; the chosen token may be beyond the top-n."""
    if not rows:
        return None
    best = [sorted(row.items(), key=lambda item: item[1].rank or 0) for row in rows]
    return Logprobs(
        chosen=tuple(float(row[t].logprob) for row, t in zip(rows, token_ids, strict=True)),
        top_token_ids=tuple(tuple(int(t) for t, _ in row) for row in best),
        top=tuple(tuple(float(p.logprob) for _, p in row) for row in best),
    )


def first_reason(error: Exception) -> str:
    """The engine's own reason in one line, without the furniture of a validation error."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        messages = [str(each.get("msg", "")) for each in errors()]
        if messages and messages[0]:
            return messages[0].removeprefix("Value error, ")
    return " ".join(str(error).split())
