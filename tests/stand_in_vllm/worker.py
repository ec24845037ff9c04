"""A live worker put together from the stand-ins: a small model, its runner, its offloader."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

NUM_LAYERS = 4
WIDTH = 3


class Layer(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.mlp = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp.weight.data.fill_(value)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.mlp(hidden)


class Model(nn.Module):
    """`model.layers.N.mlp.weight`, whose elements are all N + 1, and `model.norm.weight`."""

    def __init__(self, offloader: Any) -> None:
        super().__init__()
        self.model = nn.Module()
        layers = offloader.wrap_modules(Layer(i + 1.0) for i in range(NUM_LAYERS))
        self.model.layers = nn.ModuleList(layers)
        self.model.norm = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.model.layers:
            hidden = layer(hidden)
        return hidden


@dataclass
class ModelConfig:
    model: str = "/models/toy"
    dtype: torch.dtype = torch.float32
    enforce_eager: bool = True
    seed: int = 0


@dataclass
class UvaConfig:
    cpu_offload_gb: float = 0.0
    cpu_offload_params: set[str] = field(default_factory=lambda: {"b", "a"})


@dataclass
class OffloadConfig:
    offload_backend: str = "auto"
    uva: UvaConfig = field(default_factory=UvaConfig)


@dataclass
class CompilationConfig:
    sizes: list[int] = field(default_factory=lambda: [4, 1, 2])
    hooks: list[object] = field(default_factory=lambda: [object()])
    seed: int = 99


@dataclass
class ParallelConfig:
    tensor_parallel_size: int = 1


@dataclass
class Other:
    block_size: int = 16


def make_config(**changes: Any) -> SimpleNamespace:
    """Shaped as VllmConfig; `changes` replace whole parts."""
    parts = {
        "model_config": ModelConfig(),
        "cache_config": Other(),
        "parallel_config": ParallelConfig(),
        "scheduler_config": Other(block_size=-1),
        "load_config": Other(),
        "offload_config": OffloadConfig(),
        "compilation_config": CompilationConfig(),
    }
    return SimpleNamespace(**{**parts, **changes})


class Worker:
    """Its module is vLLM's, by which the view is found."""

    def __init__(self, runner: Any, config: Any, rank: int = 0) -> None:
        self.model_runner = runner
        self.vllm_config = config
        self.device = torch.device("cpu")
        self.rank = rank


Worker.__module__ = "vllm.v1.worker.gpu_worker"


def make_worker(runner: ModuleType, offloader: Any, **config: Any) -> Worker:
    """A worker whose model is loaded and whose offloader has begun.

    Args:
        runner: the stand-in module of the runner.
        offloader: an offloader of the stand-ins.
        config: parts of the configuration to replace.
    """
    torch.manual_seed(0)
    model = Model(offloader)
    made = runner.GPUModelRunner(model, offloader)
    offloader.post_init()
    return Worker(made, make_config(**config))
