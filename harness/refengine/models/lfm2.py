"""LFM2: layers of attention, and layers of a short convolution over the last few tokens.

A convolution's input is kept for every token, in the pages that hold keys and values in other
layers, so that chunked prompts, recorded graphs and sleep need to know nothing of it.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.nn.functional import linear

from harness.refengine.device import Device, Pending
from harness.refengine.layers import (
    AttentionContext,
    AttentionShape,
    attention_block,
    mlp_block,
    rms_norm,
)

from .llama import CausalLM, Context, DecoderModel, Mixer
from .shape import CONV, ModelShape
from .weight import Weight


class Lfm2Attention(Mixer):
    """Weights of one attention, and its part of the KV cache."""

    work = staticmethod(attention_block)

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape) -> None:
        super().__init__()
        heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.constants = AttentionShape(
            num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, eps=shape.eps
        )
        self.qkv_proj = Weight(device, dtype, (heads + 2 * kv_heads) * dim, shape.hidden_size)
        self.out_proj = Weight(device, dtype, shape.hidden_size, heads * dim)
        self.q_layernorm = Weight(device, dtype, dim)
        self.k_layernorm = Weight(device, dtype, dim)

    def weights(self) -> tuple[torch.Tensor, ...]:
        """Weights in the order `attention_block` takes them."""
        return self.qkv_proj.now, self.out_proj.now, self.q_layernorm.now, self.k_layernorm.now


def short_conv_block(
    x: torch.Tensor,
    angles: torch.Tensor,
    ctx: AttentionContext,
    cache: torch.Tensor,
    eps: float,
    norm: torch.Tensor,
    conv: torch.Tensor,
    in_proj: torch.Tensor,
    out_proj: torch.Tensor,
) -> torch.Tensor:
    """`x` plus the gated convolution of its norm; writes this step's inputs of it to the cache.

    One kernel for a prompt, a chunk of one and a single token: each row reads its last taps.

    Args:
        x: residual stream `[tokens, hidden]`.
        angles: nothing is rotated here.
        ctx: the step's context.
        cache: `[num_blocks, block_size, hidden]`.
        eps: of the norm.
        norm: `[hidden]`.
        conv: `[hidden, 1, taps]`; the last one is the token's own.
        in_proj: `[3 * hidden, hidden]`: gate of the input, gate of the output, input.
        out_proj: `[hidden, hidden]`.
    """
    del angles
    gate, out_gate, value = linear(rms_norm(x, norm, eps), in_proj).chunk(3, dim=-1)
    flat, block_size = cache.view(-1, cache.shape[-1]), cache.shape[1]
    flat.index_copy_(0, ctx.slot_mapping, gate * value)
    at = ctx.positions[:, None] + torch.arange(1 - conv.shape[-1], 1, device=x.device)
    before, at = at < 0, at.clamp(min=0)
    rows = ctx.blocks.gather(1, at // block_size) * block_size + at % block_size
    taps = flat[rows].masked_fill(before[..., None], 0).float()
    mixed = (taps * conv[:, 0].t().float()).sum(1).to(x.dtype)
    return x + linear(out_gate * mixed, out_proj)


class ShortConv(Mixer):
    """Weights of one short convolution, and the inputs of it so far."""

    work = staticmethod(short_conv_block)

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape) -> None:
        super().__init__()
        self.constants, hidden = shape.eps, shape.hidden_size
        self.conv = Weight(device, dtype, hidden, 1, shape.num_taps)
        self.in_proj = Weight(device, dtype, 3 * hidden, hidden)
        self.out_proj = Weight(device, dtype, hidden, hidden)

    def weights(self) -> tuple[torch.Tensor, ...]:
        """Weights in the order `short_conv_block` takes them."""
        return self.conv.now, self.in_proj.now, self.out_proj.now


class FeedForward(nn.Module):
    """Weights of one gated MLP."""

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape) -> None:
        super().__init__()
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self.w13 = Weight(device, dtype, 2 * inner, hidden)
        self.w2 = Weight(device, dtype, hidden, inner)


class Lfm2Layer(nn.Module):
    """One layer: two pieces of work, attention or convolution, and MLP."""

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape, idx: int) -> None:
        super().__init__()
        self.device, self.eps = device, shape.eps
        is_conv = shape.layer_kinds[idx] == CONV
        self.mixer_name = "short_conv" if is_conv else "self_attn"
        self.add_module(
            self.mixer_name, (ShortConv if is_conv else Lfm2Attention)(device, dtype, shape)
        )
        self.feed_forward = FeedForward(device, dtype, shape)
        self.operator_norm = Weight(device, dtype, shape.hidden_size)
        self.ffn_norm = Weight(device, dtype, shape.hidden_size)
        self.mixer_site = f"model.layers.{idx}.{self.mixer_name}"
        self.mlp_site = f"model.layers.{idx}.feed_forward"

    def forward(
        self, angles: Pending[torch.Tensor], hidden: Pending[torch.Tensor], ctx: Context
    ) -> Pending[torch.Tensor]:
        """Queue the layer; weights are read here, as a kernel's arguments would be."""
        mixer, mlp = cast("ShortConv | Lfm2Attention", self.mixer), self.feed_forward
        cache, weights = mixer.kv_cache, (self.operator_norm.now, *mixer.weights())
        hidden = self.device.launch(
            mixer.work, hidden, angles, ctx, cache, mixer.constants, *weights,
            reads=(cache, *weights), writes=(cache,), site=self.mixer_site,
        )  # fmt: skip
        weights = (self.ffn_norm.now, mlp.w13.now, mlp.w2.now)
        return self.device.launch(
            mlp_block, hidden, self.eps, *weights, reads=weights, site=self.mlp_site
        )

    @property
    def mixer(self) -> Mixer:
        """Attention or convolution."""
        return cast("Mixer", self.get_submodule(self.mixer_name))


class Lfm2Model(DecoderModel):
    """Embedding, layers and final norm, which has a name of its own."""

    layer_class = Lfm2Layer
    norm_name = "embedding_norm"


class Lfm2ForCausalLM(CausalLM):
    """LFM2 with its output projection."""

    model_class = Lfm2Model
