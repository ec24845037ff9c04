"""A live worker put together from the stand-ins: a small model, its runner, its offloader."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
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
class HfConfig:
    """What the checkpoint says for itself; some of its names are also arguments'."""

    block_size: int = 4096
    hidden_size: int = 3


@dataclass
class ModelConfig:
    model: str = "/models/toy"
    dtype: torch.dtype = torch.float32
    enforce_eager: bool = True
    seed: int = 0
    hf_config: HfConfig = field(default_factory=HfConfig)


@dataclass
class UvaConfig:
    cpu_offload_gb: float = 0.0
    cpu_offload_params: set[str] = field(default_factory=lambda: {"b", "a"})


@dataclass
class OffloadConfig:
    offload_backend: str = "auto"
    uva: UvaConfig = field(default_factory=UvaConfig)


class CompilationMode(IntEnum):
    NONE = 0
    VLLM_COMPILE = 3


class CudagraphMode(Enum):
    NONE = 0
    FULL_AND_PIECEWISE = (2, 1)


@dataclass
class PassConfig:
    eliminate_noops: bool = True


@dataclass
class CompilationConfig:
    sizes: list[int] = field(default_factory=lambda: [4, 1, 2])
    hooks: list[object] = field(default_factory=lambda: [object()])
    layers: dict[str, object] = field(default_factory=lambda: {"model.layers.0": object()})
    seed: int = 99
    mode: CompilationMode = CompilationMode.VLLM_COMPILE
    cudagraph_mode: CudagraphMode = CudagraphMode.FULL_AND_PIECEWISE
    cudagraph_capture_sizes: list[int] = field(default_factory=lambda: [1, 2])
    pass_config: PassConfig = field(default_factory=PassConfig)


@dataclass
class ParallelConfig:
    tensor_parallel_size: int = 1


@dataclass
class CacheConfig:
    block_size: int = 16
    cache_dtype: str = "fp8"


@dataclass
class SchedulerConfig:
    block_size: int = -1
    policy: str = "priority"


@dataclass
class LoadConfig:
    load_format: str = "safetensors"
    model_loader_extra_config: dict[str, int] = field(default_factory=lambda: {"threads": 2})


def make_config(**changes: Any) -> SimpleNamespace:
    """Shaped as VllmConfig; `changes` replace whole parts."""
    parts = {
        "model_config": ModelConfig(),
        "cache_config": CacheConfig(),
        "parallel_config": ParallelConfig(),
        "scheduler_config": SchedulerConfig(),
        "load_config": LoadConfig(),
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
