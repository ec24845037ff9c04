"""Llama, Mistral (sliding window) and Qwen3 (q/k norm): one decoder with two switches.

Parameters have vLLM's fused names, in vLLM's order, and are made through `wrap_modules` one layer
at a time, so that a model larger than the device can be offloaded while it is built. `forward` is
host code: it queues work on the device, with the weights as the launch's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from harness.refengine.device import Device, Pending
from harness.refengine.layers import (
    AttentionContext,
    AttentionShape,
    Operand,
    angles_at,
    attention_block,
    mlp_block,
    rms_norm,
    rotary_table,
)
from harness.refengine.offloader import get_offloader
from harness.refengine.stage import ONLY_STAGE, IntermediateTensors, Stage

from .mlp import MLP, make_linear
from .shape import ModelShape
from .tower import PromptTower
from .weight import NoMemory, PackedLinear, Weight, named, operands

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
        self.qkv_proj = make_linear(device, dtype, shape, rows, shape.hidden_size, parts=3)
        self.o_proj = make_linear(device, dtype, shape, shape.hidden_size, heads * dim)
        self.has_qk_norm = shape.has_qk_norm
        if self.has_qk_norm:
            self.q_norm = Weight(device, dtype, dim)
            self.k_norm = Weight(device, dtype, dim)

    def weights(self) -> tuple[Operand, ...]:
        """Weights in the order `attention_block` takes them."""
        projections = (self.qkv_proj.now, self.o_proj.now)
        if not self.has_qk_norm:
            return projections
        return (*projections, self.q_norm.now, self.k_norm.now)


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
            reads=(kv, *operands(*weights)), writes=(kv,), site=self.attn_site,
        )  # fmt: skip
        weights = (self.post_attention_layernorm.now, mlp.gate_up_proj.now, mlp.down_proj.now)
        return self.device.launch(
            mlp_block, hidden, attn.shape.eps, *weights, reads=operands(*weights),
            site=self.mlp_site,
        )  # fmt: skip

    @property
    def mixer(self) -> Mixer:
        """The attention."""
        return self.self_attn


class PPMissingLayer(nn.Module):
    """Stands where a module is that another stage holds, so that names stay those of the whole."""


class DecoderModel(nn.Module):
    """Embedding, layers and final norm, as far as the stage holds them."""

    layer_class: Callable[..., nn.Module] = DecoderLayer
    norm_name = "norm"

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape, stage: Stage) -> None:
        super().__init__()
        self.device, self.eps, self.dtype, self.shape = device, shape.eps, dtype, shape
        self.held = stage.layers(shape.num_layers)
        self.is_last = stage.is_last
        has_table = stage.is_first or (stage.is_last and shape.is_tied)
        table = (device, dtype, shape.vocab_size, shape.hidden_size)
        self.embed_tokens = cast("Weight", Weight(*table) if has_table else PPMissingLayer())
        own = get_offloader().wrap_modules(self.make_layer(idx, device) for idx in self.held)
        before, after = self.held.start, shape.num_layers - self.held.stop
        missing = ([PPMissingLayer() for _ in range(num)] for num in (before, after))
        self.layers = nn.ModuleList([*next(missing), *own, *next(missing)])
        norm = (device, dtype, shape.hidden_size)
        self.add_module(self.norm_name, Weight(*norm) if stage.is_last else PPMissingLayer())

    def make_layer(self, idx: int, device: Device) -> nn.Module:
        """Layer `idx` of the whole model, its parameters allocated on `device`."""
        return self.layer_class(device, self.dtype, self.shape, idx)

    @property
    def own_layers(self) -> list[DecoderLayer]:
        """The layers of this stage, in order."""
        return [cast("DecoderLayer", self.layers[idx]) for idx in self.held]

    def embed(self, input_ids: Ids) -> Pending[torch.Tensor]:
        """Queue the embedding of tokens: `[tokens, hidden]`."""
        table, site = self.embed_tokens.now, "model.embed_tokens"
        return self.device.launch(embedding, input_ids, table, reads=(table,), site=site)

    def forward(
        self,
        hidden: Pending[torch.Tensor],
        angles: Pending[torch.Tensor],
        ctx: Context,
    ) -> Pending[torch.Tensor]:
        """Queue every layer; the result is the hidden state `[tokens, hidden]`, at last normed."""
        for layer in self.own_layers:
            hidden = layer(angles, hidden, ctx)
        if not self.is_last:
            return hidden
        norm = cast("Weight", self.get_submodule(self.norm_name)).now
        launch = self.device.launch
        return launch(rms_norm, hidden, norm, self.eps, reads=(norm,), site="model.norm")


class CausalLM(nn.Module):
    """A decoder with its output projection.

    Args:
        device: where parameters are allocated and work is queued.
        dtype: of parameters and activations.
        hf_config: the checkpoint's config.json.
        max_model_len: positions of the rotary table.
        stage: whose part of the model is made.
    """

    model_class = DecoderModel

    def __init__(
        self,
        device: Device,
        dtype: torch.dtype,
        hf_config: Mapping[str, Any],
        max_model_len: int,
        stage: Stage = ONLY_STAGE,
    ) -> None:
        super().__init__()
        self.device, self.shape = device, ModelShape.from_hf(hf_config)
        self.prompt_tower: PromptTower | None = None
        if stage.is_first and self.shape.num_tower_layers:
            self.prompt_tower = PromptTower(device, dtype, self.shape)
            get_offloader().wrap_tower(self.prompt_tower, "prompt_tower")
        self.model = self.model_class(device, dtype, self.shape, stage)
        if stage.is_last and not self.shape.is_tied:
            self.lm_head = Weight(device, dtype, self.shape.vocab_size, self.shape.hidden_size)
        table = rotary_table(hf_config, self.shape.head_dim, max_model_len, dtype)
        self.rotary = named(device.to(table, "device", kind="state"), "rotary")
        for name, module in self.named_modules():
            if isinstance(module, Weight | PackedLinear):
                module.full_name = name

    def tower_sees(self, prompt_rows: Sequence[int]) -> bool:
        """Whether a step with these rows of prompts runs the tower."""
        return self.prompt_tower is not None and bool(prompt_rows)

    @property
    def held_shape(self) -> ModelShape:
        """The shape with as many layers as this stage holds."""
        held = self.model.held
        kinds = self.shape.layer_kinds[held.start : held.stop]
        return replace(self.shape, num_layers=len(held), layer_kinds=kinds)

    def whole_shapes(self) -> dict[str, torch.Size]:
        """Every parameter of the whole model as loaded, in its order, whichever stage holds it."""
        shape, nowhere = self.shape, cast("Device", NoMemory())
        tower = PromptTower(nowhere, self.model.dtype, shape).named_parameters()
        outer = torch.Size([shape.vocab_size, shape.hidden_size])
        whole = {f"prompt_tower.{name}": param.shape for name, param in tower}
        whole["model.embed_tokens.weight"] = outer
        for idx in range(shape.num_layers):
            layer = self.model.make_layer(idx, nowhere)
            for name, param in layer.named_parameters():
                whole[f"model.layers.{idx}.{name}"] = param.shape
        whole[f"model.{self.model.norm_name}.weight"] = outer[1:]
        return whole if shape.is_tied else {**whole, "lm_head.weight": outer}

    @property
    def output_weight(self) -> torch.Tensor:
        """`[vocab, hidden]`: the embedding when tied."""
        return (self.model.embed_tokens if self.shape.is_tied else self.lm_head).now

    def forward(
        self,
        input_ids: Ids,
        positions: Ids,
        ctx: Context,
        intermediate_tensors: IntermediateTensors | None = None,
        prompt_rows: Sequence[int] = (),
    ) -> Pending[torch.Tensor]:
        """Queue the stage over a flat batch.

        Args:
            input_ids: int64 `[tokens]`.
            positions: int64 `[tokens]`.
            ctx: the step's attention context.
            intermediate_tensors: `hidden_states` to start from instead of the embedding.
            prompt_rows: rows of the batch that are of a prompt, which a tower sees.
        """
        angles = self.device.launch(
            angles_at, self.rotary, positions, reads=(self.rotary,), site="model.rotary"
        )
        hidden: Pending[torch.Tensor]
        if intermediate_tensors is None:
            hidden = self.model.embed(input_ids)
            if self.prompt_tower is not None and prompt_rows:
                hidden = self.prompt_tower(hidden, prompt_rows)
        else:
            hidden = intermediate_tensors["hidden_states"]
        hidden = self.model(hidden, angles, ctx)
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
        for layer, kv_cache in zip(self.model.own_layers, kv_caches, strict=True):
            layer.mixer.kv_cache = kv_cache


def project_rows(hidden: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Logits of the chosen rows."""
    return linear(hidden[rows], weight)
