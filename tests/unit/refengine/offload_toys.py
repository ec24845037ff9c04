"""Small modules whose weights matter, in order, and a place to run them: for offloader tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from harness.refengine import envs
from harness.refengine.device import SimulatedDevice, set_current_device
from harness.refengine.offloader import NoopOffloader, set_offloader

PRIME = 1009
WIDTH = 4


def mix(x, weight, bias):
    """Exact in float32, and different for every order and choice of weights."""
    return torch.remainder(x * 3 + weight * 5 + bias, PRIME)


class Leaf(nn.Module):
    def __init__(self, device, value):
        super().__init__()
        data = device.empty((WIDTH,), torch.float32)
        data.fill_(value)
        self.weight = nn.Parameter(data, requires_grad=False)


class Layer(nn.Module):
    """Parameters `attn.weight` and `mlp.weight`, 16 bytes each."""

    def __init__(self, device, idx):
        super().__init__()
        self.device = device
        self.attn = Leaf(device, 7 * idx + 1)
        self.mlp = Leaf(device, 11 * idx + 2)

    def forward(self, x):
        weights = (self.attn.weight, self.mlp.weight)
        return self.device.launch(mix, x, *weights, reads=weights, site="layer")


def expected(num_layers, steps=1):
    x = torch.ones(WIDTH)
    for _ in range(steps):
        for idx in range(num_layers):
            x = mix(x, torch.full((WIDTH,), 7.0 * idx + 1), torch.full((WIDTH,), 11.0 * idx + 2))
    return x.tolist()


def build(device, offloader, num_layers):
    """Wrap a lazily made stack, finish, and return its layers."""
    layers = offloader.wrap_modules(Layer(device, idx) for idx in range(num_layers))
    offloader.post_init()
    return layers


def run_steps(layers, steps=1):
    """Run the stack `steps` times without waiting in between, and read the result."""
    x = torch.ones(WIDTH)
    for _ in range(steps):
        for layer in layers:
            x = layer(x)
    return x.result().tolist()


@contextmanager
def device_in_use(**kwargs) -> Iterator[SimulatedDevice]:
    """A current device, and everything global back to its default afterwards."""
    torch.set_num_threads(1)
    device = SimulatedDevice(**kwargs)
    set_current_device(device)
    try:
        yield device
    finally:
        set_current_device(None)
        set_offloader(NoopOffloader())
        envs.disable_envs_cache()
