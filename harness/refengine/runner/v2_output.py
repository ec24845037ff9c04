"""Runner V2's way back to the host: one packed tensor a step, copied asynchronously."""

from __future__ import annotations

import torch

from harness.refengine.device import Event
from harness.refengine.sampler import SamplerOutput, SamplingRow, num_logprobs, to_tokens
from harness.refengine.scheduler import SampledToken


class AsyncOutput:
    """Sampled tokens on their way to the host."""

    def __init__(
        self, table: torch.Tensor, event: Event, ids: list[str], rows: list[SamplingRow]
    ) -> None:
        self._table, self._event, self._ids, self._rows = table, event, ids, rows
        self.is_taken = not ids

    def get_output(self) -> dict[str, SampledToken]:
        """Wait for the copy, and return the sampled token of each request that has one."""
        if not self._ids:
            return {}
        self._event.synchronize()
        self.is_taken = True
        return dict(zip(self._ids, to_tokens(unpack(self._table), self._rows), strict=True))


def packed_width(sampling: list[SamplingRow]) -> int:
    """Columns of the packed output: the token, or token, logprob and top-n pairs."""
    num_top = num_logprobs(sampling)
    return 1 if num_top is None else 2 + 2 * num_top


def pack(sampled: SamplerOutput) -> torch.Tensor:
    """All of a sampler's output in one float64 tensor `[rows, packed_width]`, exactly."""
    columns = [sampled.token_ids[:, None].double()]
    if sampled.chosen is not None and sampled.top is not None:
        assert sampled.top_token_ids is not None
        columns += [sampled.chosen[:, None].double(), sampled.top_token_ids.double()]
        columns.append(sampled.top.double())
    return torch.cat(columns, dim=1)


def unpack(table: torch.Tensor) -> SamplerOutput:
    """The inverse of `pack`, on the host."""
    token_ids = table[:, 0].long()
    if table.shape[1] == 1:
        return SamplerOutput(token_ids=token_ids)
    num_top = (table.shape[1] - 2) // 2
    return SamplerOutput(
        token_ids=token_ids,
        chosen=table[:, 1],
        top_token_ids=table[:, 2 : 2 + num_top].long(),
        top=table[:, 2 + num_top :],
    )
