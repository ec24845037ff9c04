"""What one request asks of the sampler, in vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass

from .config import check


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Temperature 0 is greedy; log-probabilities are of the raw distribution."""

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    """None derives one from the engine's seed and the request's number."""
    logprobs: int | None = None
    """How many top log-probabilities to return per position; None returns none."""
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        check(self.max_tokens >= 1, f"max_tokens={self.max_tokens!r} must be >= 1")
        check(self.temperature >= 0, f"temperature={self.temperature!r} must be >= 0")
        check(0 < self.top_p <= 1, f"top_p={self.top_p!r} must be in (0, 1]")
        check(
            self.logprobs is None or self.logprobs >= 0,
            f"logprobs={self.logprobs!r} must be None or >= 0",
        )
