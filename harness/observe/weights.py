"""Weights at the moment of use: what every piece of compute is about to read, hashed by name.

A digest is 64 bits of SHA-256 over the whole content: two contents agree by chance once in 2**64.
Sampled mode looks at 32 words of every read, and hashes the whole whenever those differ from the
content hashed last, besides each parameter's first read and every 32nd after it: other weights are
seen at the first read, a change that misses all 32 words within 32 reads.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

EVERY = 32
SCREEN_WORDS = 32
DIGEST_DIGITS = 16
NOWHERE = "nowhere"
"""Stands for the digest of a tensor without bytes, which compute took for weights."""
WORD_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Element size -> a type of that size that numpy knows too."""


@dataclass(slots=True, kw_only=True)
class Reads:
    """What was seen of one parameter."""

    num_reads: int = 0
    first: str = ""
    """Digest at the first read."""
    screen: bytes = b""
    """Sampled words of the content that was hashed last."""
    digests: Counter[str] = field(default_factory=Counter)
    places: dict[str, int] = field(default_factory=dict)
    """Digest -> address it was first read at."""


class WeightRecorder:
    """An observer of a device that hashes named tensors among a work's reads, just before it runs.

    Args:
        mode: `sampled`, or `full` for every read.
    """

    def __init__(self, mode: Literal["sampled", "full"] = "sampled") -> None:
        self.mode = mode
        self.reads: dict[str, Reads] = {}
        self.num_hashed = 0

    def begin_anew(self) -> None:
        """Forget what was seen so far."""
        self.reads.clear()
        self.num_hashed = 0

    def on_run(self, work: Any) -> None:
        """Look at every read that stands for a parameter; copies read no weights to compute."""
        if work.is_copy:
            return
        for tensor in work.reads:
            name = getattr(tensor, "param_name", None)
            if name:
                self._look(name, tensor)

    def on_launch(self, work: Any) -> None:
        """What work is queued for decides nothing here."""

    def on_copy(self, work: Any) -> None:
        """Copies are not reads by compute."""

    def on_record(self, event: Any, stream: Any) -> None:
        """Events decide nothing here."""

    def on_wait(self, stream: Any, event: Any) -> None:
        """Waits decide nothing here."""

    def on_host_wait(self, target: Any) -> None:
        """Nor do those of the host."""

    def _look(self, name: str, tensor: torch.Tensor) -> None:
        seen = self.reads.get(name)
        if seen is None:
            seen = self.reads[name] = Reads()
        screen = b""
        if self.mode == "sampled" and not tensor.is_meta:
            screen = sampled_words(tensor)
            if seen.num_reads % EVERY and screen == seen.screen:
                seen.num_reads += 1
                return
        digest = NOWHERE if tensor.is_meta else digest_of(tensor)
        seen.num_reads += 1
        seen.screen = screen
        seen.digests[digest] += 1
        seen.first = seen.first or digest
        seen.places.setdefault(digest, tensor.data_ptr())
        self.num_hashed += 1


def raw_bytes(tensor: torch.Tensor) -> Any:
    """The elements of a tensor in logical order, as a flat array of the widest words that fit."""
    if tensor.is_cuda or tensor.requires_grad or not tensor.is_contiguous():
        tensor = tensor.detach().cpu().contiguous()
    flat = tensor.view(WORD_TYPES[tensor.itemsize]).numpy().reshape(-1)
    return flat.view("uint64") if flat.nbytes % 8 == 0 else flat


def sampled_words(tensor: torch.Tensor) -> bytes:
    """About `SCREEN_WORDS` elements of a tensor, evenly spread; only they leave the device."""
    words = tensor.detach().reshape(-1).view(WORD_TYPES[tensor.itemsize])
    chosen = words[:: max(1, len(words) // SCREEN_WORDS)]
    content: bytes = chosen.cpu().numpy().tobytes()
    return content


def digest_of(tensor: torch.Tensor) -> str:
    """Digest of a tensor's elements in logical order."""
    return _digest(raw_bytes(tensor))


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]
