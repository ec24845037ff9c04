"""Llama, Mistral (sliding window) and Qwen3 (q/k norm): one decoder with two switches.

Parameters have vLLM's fused names, in vLLM's order, and are made through `wrap_modules` one layer
at a time, so that a model larger than the device can be offloaded while it is built. `forward` is
host code: it queues work on the device, with the weights as the launch's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from harness.refengine.device import Device, Pending
from harness.refengine.layers import (
    AttentionContext,
    AttentionShape,
    angles_at,
    attention_block,
    mlp_block,
    rms_norm,
    rotary_table,
)
from harness.refengine.offloader import get_offloader

from .shape import ModelShape
from .weight import Weight, named

Ids = torch.Tensor | Pending[torch.Tensor]
Context = AttentionContext | Pending[AttentionContext]


class Mixer(nn.Module):
    """The part of a layer that looks at other tokens, with what it keeps of them in blocks."""

    kv_cache: torch.Tensor = torch.empty(0)


class Attention(Mixer):
    """Weights of one attention, and its part of the KV cache."""

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape) -> None:
        super().__init__()
        heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.shape = AttentionShape(
            num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, eps=shape.eps
        )
        rows = (heads + 2 * kv_heads) * dim
        self.qkv_proj = Weight(device, dtype, rows, shape.hidden_size)
        self.o_proj = Weight(device, dtype, shape.hidden_size, heads * dim)
        self.has_qk_norm = shape.has_qk_norm
        if self.has_qk_norm:
            self.q_norm = Weight(device, dtype, dim)
            self.k_norm = Weight(device, dtype, dim)

    def weights(self) -> tuple[torch.Tensor, ...]:
        """Weights in the order `attention_block` takes them."""
        projections = (self.qkv_proj.now, self.o_proj.now)
        if not self.has_qk_norm:
            return projections
        return (*projections, self.q_norm.now, self.k_norm.now)


class MLP(nn.Module):
    """Weights of one gated MLP."""

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape) -> None:
        super().__init__()
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self.gate_up_proj = Weight(device, dtype, 2 * inner, hidden)
        self.down_proj = Weight(device, dtype, hidden, inner)


class DecoderLayer(nn.Module):
    """One layer: two pieces of work, attention and MLP."""

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape, idx: int) -> None:
        super().__init__()
        self.device = device
        self.self_attn = Attention(device, dtype, shape)
        self.mlp = MLP(device, dtype, shape)
        self.input_layernorm = Weight(device, dtype, shape.hidden_size)
        self.post_attention_layernorm = Weight(device, dtype, shape.hidden_size)
        self.attn_site = f"model.layers.{idx}.self_attn"
        self.mlp_site = f"model.layers.{idx}.mlp"

    def forward(
        self, angles: Pending[torch.Tensor], hidden: Pending[torch.Tensor], ctx: Context
    ) -> Pending[torch.Tensor]:
        """Queue the layer; weights are read here, as a kernel's arguments would be."""
        attn, mlp = self.self_attn, self.mlp
        kv, weights = attn.kv_cache, (self.input_layernorm.now, *attn.weights())
        hidden = self.device.launch(
            attention_block, hidden, angles, ctx, kv, attn.shape, *weights,
            reads=(kv, *weights), writes=(kv,), site=self.attn_site,
        )  # fmt: skip
        weights = (self.post_attention_layernorm.now, mlp.gate_up_proj.now, mlp.down_proj.now)
        return self.device.launch(
            mlp_block, hidden, attn.shape.eps, *weights, reads=weights, site=self.mlp_site
        )

    @property
    def mixer(self) -> Mixer:
        """The attention."""
        return self.self_attn


class DecoderModel(nn.Module):
    """Embedding, layers and final norm."""

    layer_class: Callable[..., nn.Module] = DecoderLayer
    norm_name = "norm"

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape) -> None:
        super().__init__()
        self.device, self.eps = device, shape.eps
        self.embed_tokens = Weight(device, dtype, shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(
            get_offloader().wrap_modules(
                self.layer_class(device, dtype, shape, idx) for idx in range(shape.num_layers)
            )
        )
        self.add_module(self.norm_name, Weight(device, dtype, shape.hidden_size))

    def forward(
        self,
        input_ids: Ids,
        angles: Pending[torch.Tensor],
        ctx: Context,
        intermediate_tensors: Mapping[str, Pending[torch.Tensor]] | None = None,
    ) -> Pending[torch.Tensor]:
        """Queue every layer; the result is the normed hidden state `[tokens, hidden]`."""
        launch, table = self.device.launch, self.embed_tokens.now
        norm = cast("Weight", self.get_submodule(self.norm_name)).now
        if intermediate_tensors is None:
            site = "model.embed_tokens"
            hidden = launch(embedding, input_ids, table, reads=(table,), site=site)
        else:
            hidden = intermediate_tensors["hidden_states"]
        for layer in self.layers:
            hidden = layer(angles, hidden, ctx)
        return launch(rms_norm, hidden, norm, self.eps, reads=(norm,), site="model.norm")


class CausalLM(nn.Module):
    """A decoder with its output projection.

    Args:
        device: where parameters are allocated and work is queued.
        dtype: of parameters and activations.
        hf_config: the checkpoint's config.json.
        max_model_len: positions of the rotary table.
    """

    model_class = DecoderModel

    def __init__(
        self,
        device: Device,
        dtype: torch.dtype,
        hf_config: Mapping[str, Any],
        max_model_len: int,
    ) -> None:
        super().__init__()
        self.device, self.shape = device, ModelShape.from_hf(hf_config)
        self.model = self.model_class(device, dtype, self.shape)
        if not self.shape.is_tied:
            self.lm_head = Weight(device, dtype, self.shape.vocab_size, self.shape.hidden_size)
        table = rotary_table(hf_config, self.shape.head_dim, max_model_len, dtype)
        self.rotary = named(device.to(table, "device", kind="state"), "rotary")
        for name, module in self.named_modules():
            if isinstance(module, Weight):
                module.full_name = f"{name}.weight"

    @property
    def output_weight(self) -> torch.Tensor:
        """`[vocab, hidden]`: the embedding when tied."""
        return (self.model.embed_tokens if self.shape.is_tied else self.lm_head).now

    def forward(
        self,
        input_ids: Ids,
        positions: Ids,
        ctx: Context,
        intermediate_tensors: Mapping[str, Pending[torch.Tensor]] | None = None,
    ) -> Pending[torch.Tensor]:
        """Queue the model over a flat batch.

        Args:
            input_ids: int64 `[tokens]`.
            positions: int64 `[tokens]`.
            ctx: the step's attention context.
            intermediate_tensors: `hidden_states` to start from instead of the embedding.
        """
        angles = self.device.launch(
            angles_at, self.rotary, positions, reads=(self.rotary,), site="model.rotary"
        )
        hidden: Pending[torch.Tensor] = self.model(input_ids, angles, ctx, intermediate_tensors)
        return hidden

    def compute_logits(
        self, hidden: Pending[torch.Tensor], rows: torch.Tensor
    ) -> Pending[torch.Tensor]:
        """Queue the logits `[len(rows), vocab]` of some rows of the hidden state."""
        weight = self.output_weight
        return self.device.launch(
            project_rows, hidden, rows, weight, reads=(weight,), site="lm_head"
        )

    def bind_kv_caches(self, kv_caches: list[torch.Tensor]) -> None:
        """Give each layer its part of the KV cache."""
        for layer, kv_cache in zip(self.model.layers, kv_caches, strict=True):
            cast("DecoderLayer", layer).mixer.kv_cache = kv_cache


def project_rows(hidden: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Logits of the chosen rows."""
    return linear(hidden[rows], weight)
