"""What a decoder layer computes: norm, rotary embedding, attention over KV blocks, MLP.

Plain functions on tensors, launched by models/; they know nothing of devices or requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from .config import UnsupportedSettingError


class PackedWeight(NamedTuple):
    """A linear weight as 8-bit codes; each output channel has a scale."""

    weight_packed: torch.Tensor
    """int32 `[in, out / 4]`: bytes are codes `[in, out]`, 128 is zero."""
    weight_scale: torch.Tensor
    """`[out]`."""


CODES_PER_WORD = 4
ZERO_CODE = 128
Operand = torch.Tensor | PackedWeight
"""A linear weight: `[out, in]`, or packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Constants of one attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    """Of the norms around and inside the attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChunk:
    """Rows `first .. first + len(mask)` of the batch: consecutive tokens of one request."""

    first: int
    blocks: torch.Tensor
    """int64 `[num_blocks]`."""
    mask: torch.Tensor
    """`[tokens, num_blocks * block_size]`: 0 where attention is allowed, else -inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionContext:
    """What every layer's attention needs of one step; built once a step."""

    positions: torch.Tensor
    """int64 `[tokens]`."""
    blocks: torch.Tensor
    """int64 `[tokens, blocks]`: each token's row of the block table."""
    slot_mapping: torch.Tensor
    """int64 `[tokens]`: row of the flat cache that takes each token's key and value."""
    decode_blocks: torch.Tensor
    """int64 `[decodes, blocks]`; the batch's first rows, one token each."""
    decode_mask: torch.Tensor
    """`[decodes, 1, 1, blocks * block_size]`: 0 where attention is allowed, else -inf."""
    chunks: tuple[PromptChunk, ...]


def build_context(
    positions: torch.Tensor,
    block_table: torch.Tensor,
    *,
    num_tokens: Sequence[int],
    seq_lens: Sequence[int],
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> AttentionContext:
    """Turn a batch's positions and blocks into what attention needs.

    Args:
        positions: int64 `[tokens]`, requests one after another, those of one token first.
        block_table: int64 `[requests, blocks]`, padded with the null block.
        num_tokens: tokens of each request in this step, on the host.
        seq_lens: tokens of each request up to and with this step, on the host.
        block_size: tokens of a block.
        window: attention reaches this many tokens back, itself included; None is all.
        dtype: of the masks: the model's.
    """
    num_decodes = sum(1 for n in num_tokens if n == 1)
    rows = block_table
    if num_decodes != len(num_tokens):
        counts = torch.tensor(num_tokens, device=positions.device)
        rows = block_table.repeat_interleave(counts, dim=0, output_size=len(positions))
    block = rows.gather(1, (positions // block_size)[:, None])[:, 0]
    first, chunks = num_decodes, []
    for i in range(num_decodes, len(num_tokens)):
        blocks = block_table[i, : -(-seq_lens[i] // block_size)]
        here = positions[first : first + num_tokens[i]]
        mask = causal_mask(here, len(blocks) * block_size, window, dtype)
        chunks.append(PromptChunk(first=first, blocks=blocks, mask=mask))
        first += num_tokens[i]
    width = max((-(-n // block_size) for n in seq_lens[:num_decodes]), default=0)
    mask = causal_mask(positions[:num_decodes], width * block_size, window, dtype)
    return AttentionContext(
        positions=positions,
        blocks=rows,
        slot_mapping=block * block_size + positions % block_size,
        decode_blocks=block_table[:num_decodes, :width],
        decode_mask=mask[:, None, None],
        chunks=tuple(chunks),
    )


def causal_mask(
    positions: torch.Tensor, num_keys: int, window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """Additive mask `[len(positions), num_keys]`: 0 where a key may be seen, else -inf."""
    keys = torch.arange(num_keys, device=positions.device)
    hidden = keys > positions[:, None]
    if window is not None:
        hidden |= keys <= positions[:, None] - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(hidden, float("-inf"))


def project(x: torch.Tensor, weight: Operand) -> torch.Tensor:
    """`x` `[tokens, in]` times a linear weight: `[tokens, out]`."""
    if isinstance(weight, torch.Tensor):
        return linear(x, weight)
    codes = weight.weight_packed.view(torch.uint8).to(x.dtype) - ZERO_CODE
    return linear(x, (codes * weight.weight_scale).T)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dim: computed in float32, scaled in x's dtype."""
    full = x.float()
    full = full * torch.rsqrt(full.square().mean(-1, keepdim=True) + eps)
    return weight * full.to(x.dtype)


def angles_at(rotary: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Cosines and signed sines of a batch, `[2, tokens, 1, head_dim]`, from the table."""
    angles: torch.Tensor = rotary[positions].unsqueeze(2).transpose(0, 1)
    return angles


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `[tokens, heads, head_dim]`; the sines have their first half negated."""
    cos, sin = angles.unbind(0)
    half = x.shape[-1] // 2
    return x * cos + torch.cat((x[..., half:], x[..., :half]), dim=-1) * sin


def attention_block(
    x: torch.Tensor,
    angles: torch.Tensor,
    ctx: AttentionContext,
    kv_cache: torch.Tensor,
    shape: AttentionShape,
    norm: torch.Tensor,
    qkv_proj: Operand,
    o_proj: Operand,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
) -> torch.Tensor:
    """`x` plus the attention of its norm; writes this step's keys and values to the cache.

    Args:
        x: residual stream `[tokens, hidden]`.
        angles: of the batch's positions, see `angles_at`.
        ctx: the step's context.
        kv_cache: `[2, num_blocks, block_size, num_kv_heads, head_dim]`.
        shape: constants of the layer.
        norm: `[hidden]`.
        qkv_proj: `[(num_heads + 2 * num_kv_heads) * head_dim, hidden]`.
        o_proj: `[hidden, num_heads * head_dim]`.
        q_norm: `[head_dim]`, Qwen3 only.
        k_norm: `[head_dim]`, Qwen3 only.
    """
    heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    qkv = project(rms_norm(x, norm, shape.eps), qkv_proj).view(len(x), -1, dim)
    qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
    if q_norm is not None and k_norm is not None:
        q = rms_norm(qk[:, :heads], q_norm, shape.eps)
        qk = torch.cat((q, rms_norm(qk[:, heads:], k_norm, shape.eps)), dim=1)
    qk = rotate(qk, angles)
    flat = kv_cache.view(2, -1, kv_heads, dim)
    flat[0].index_copy_(0, ctx.slot_mapping, qk[:, heads:])
    flat[1].index_copy_(0, ctx.slot_mapping, v)
    out = attend(qk[:, :heads], ctx, kv_cache)
    return x + project(out, o_proj)


def attend(q: torch.Tensor, ctx: AttentionContext, kv_cache: torch.Tensor) -> torch.Tensor:
    """Attention of `q` `[tokens, num_heads, head_dim]` over the cache: `[tokens, num_heads * dim]`.

    All rows of one token are one batched operation; each chunk of a prompt is another.
    """
    tokens, heads, dim = q.shape
    kv_heads = kv_cache.shape[3]
    grouped = q.view(tokens, kv_heads, heads // kv_heads, dim)
    num_decodes = len(ctx.decode_blocks)
    parts = []
    if num_decodes:
        kv = kv_cache.index_select(1, ctx.decode_blocks.reshape(-1))
        k, v = kv.view(2, num_decodes, -1, kv_heads, dim).transpose(2, 3)
        out = scaled_dot_product_attention(grouped[:num_decodes], k, v, ctx.decode_mask)
        parts.append(out.reshape(num_decodes, -1))
    for chunk in ctx.chunks:
        rows = grouped[chunk.first : chunk.first + len(chunk.mask)].permute(1, 2, 0, 3)
        kv = kv_cache.index_select(1, chunk.blocks).flatten(1, 2)
        k, v = kv.transpose(1, 2).unsqueeze(2)
        k, v = k.expand(-1, rows.shape[1], -1, -1), v.expand(-1, rows.shape[1], -1, -1)
        out = scaled_dot_product_attention(rows, k, v, chunk.mask)
        parts.append(out.permute(2, 0, 1, 3).reshape(len(chunk.mask), -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def mlp_block(
    x: torch.Tensor,
    eps: float,
    norm: torch.Tensor,
    gate_up_proj: Operand,
    down_proj: Operand,
) -> torch.Tensor:
    """`x` `[tokens, hidden]` plus the gated MLP of its norm."""
    gate, up = project(rms_norm(x, norm, eps), gate_up_proj).chunk(2, dim=-1)
    return x + project(silu(gate) * up, down_proj)


def rotary_table(
    config: Mapping[str, Any], head_dim: int, num_positions: int, dtype: torch.dtype
) -> torch.Tensor:
    """Cosines and sines (first half negated) of every position: `[num_positions, 2, head_dim]`.

    Reads `rope_parameters`, or `rope_theta` and `rope_scaling`, of the checkpoint's config.

    Raises:
        UnsupportedSettingError: the rope type is neither `default` nor `llama3`.
    """
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    usual = 1e6 if config.get("model_type") == "lfm2" else 1e4
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or usual)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if kind == "llama3":
        inv_freq = llama3_scaled(inv_freq, rope)
    elif kind != "default":
        raise UnsupportedSettingError(f"rope_type={kind!r} must be one of default, llama3")
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inv_freq
    cos, sin = angles.cos(), angles.sin()
    table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
    return table.to(dtype)


def llama3_scaled(inv_freq: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    """Llama 3's frequencies: long waves slowed by `factor`, short ones kept, others blended."""
    factor, low, high = (rope[k] for k in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = rope["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    share: torch.Tensor = ((turns - low) / (high - low)).clamp(0, 1)
    scaled: torch.Tensor = share * inv_freq + (1 - share) * inv_freq / factor
    return scaled
