"""Greedy answers of a transformers model, one prompt at a time, with log-probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core import Logprobs, RequestOutput, Workload

if TYPE_CHECKING:
    import torch
    from torch import nn


class Decoder:
    """Answers the prompts of one workload.

    One prompt at a time, so that no padding enters; the first of equally likely tokens is taken.

    Args:
        model: called as transformers' causal models are; it keeps its own key-value cache.
        workload: prompts and how many tokens.
    """

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        self.model: Any = model
        self.workload = workload
        self.end_ids = _end_ids(self.model)
        self._tokenizer = _load_tokenizer(Path(workload.model.path))

    def answer(self, idx: int, step_idx: int) -> RequestOutput:
        """Answer prompt number `idx`."""
        prompt, params = self.workload.prompt_token_ids[idx], self.workload.sampling_params
        token_ids: list[int] = []
        rows: list[tuple[float, tuple[int, ...], tuple[float, ...]]] = []
        reason = "length"
        inputs, cache = list(prompt), None
        while len(token_ids) < params.max_tokens:
            logprobs, cache = self._forward(inputs, cache)
            token = int(logprobs.argmax())
            token_ids.append(token)
            if params.logprobs is not None:
                rows.append(_row(logprobs, token, params.logprobs))
            if token in self.end_ids and not params.ignore_eos:
                reason = "stop"
                break
            inputs = [token]
        return RequestOutput(
            request_id=str(idx),
            step_idx=step_idx,
            prompt_token_ids=prompt,
            token_ids=tuple(token_ids),
            logprobs=None if params.logprobs is None else _columns(rows),
            finish_reason=reason,
            text=None if self._tokenizer is None else self._tokenizer.decode(token_ids),
        )

    def _forward(self, token_ids: list[int], cache: Any) -> tuple[torch.Tensor, Any]:
        """Log-probabilities of the next token, [vocab] in float32, and the grown cache."""
        import torch

        device = next((b.device for b in self.model.buffers()), torch.device("cpu"))
        with torch.no_grad():
            input_ids = torch.tensor([token_ids], device=device)
            found = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
            logits = found.logits[0, -1].float()
            return torch.log_softmax(logits, dim=-1).cpu(), found.past_key_values


def _row(
    logprobs: torch.Tensor, token: int, num_top: int
) -> tuple[float, tuple[int, ...], tuple[float, ...]]:
    values, ids = logprobs.topk(num_top)
    return float(logprobs[token]), tuple(ids.tolist()), tuple(values.tolist())


def _columns(rows: list[tuple[float, tuple[int, ...], tuple[float, ...]]]) -> Logprobs:
    return Logprobs(
        chosen=tuple(row[0] for row in rows),
        top_token_ids=tuple(row[1] for row in rows),
        top=tuple(row[2] for row in rows),
    )


def _end_ids(model: Any) -> frozenset[int]:
    found = getattr(model.config, "eos_token_id", None)
    return frozenset(found if isinstance(found, list | tuple) else [found]) - {None}


def _load_tokenizer(folder: Path) -> Any:
    if not (folder / "tokenizer.json").is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
