"""vLLM's own offloaders run on CPU tensors, so that their book-keeping can be held without a GPU.

An emulation: copies are made at once, so that no race can show, and nothing can be pinned. What is
vLLM's stays vLLM's: which layers and parameters, slots, refill order, byte counts, custom ops. In
memory only, these are replaced: the guards that refuse parameters on a CPU, the query whether a
graph is being captured, V1's missing post_init on a CPU, streams and events, and the packing of
linear weights, which would leave nothing to hash.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from typing import Any, ClassVar

import torch

from harness.engines.base import InternalMovedError

from .modules import VllmModules
from .patching import do_after, find_method

_host: dict[int, torch.Tensor] = {}
_is_on: list[bool] = []


def is_on() -> bool:
    """Whether this process emulates."""
    return bool(_is_on)


def device_name() -> str:
    """Kind of device that vLLM will use in this process.

    vLLM is asked, since asking torch would touch the driver, and a core forked later could not.
    """
    return "cpu" if is_on() else str(_module("platforms").current_platform.device_type)


def is_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in memory that stands for the host's."""
    return tensor.untyped_storage().data_ptr() in _host


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory that stands for the host's."""
    return _adopt(tensor.clone())


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory that stands for the device's, or the tensor if it is there."""
    return tensor.clone() if is_host(tensor) else tensor


def install() -> None:
    """Make vLLM offload on CPU tensors in this process; a second call does nothing.

    Raises:
        InternalMovedError: what is to be replaced is not there.
    """
    if _is_on:
        return
    _is_on.append(True)
    cuda: Any = torch.cuda
    cuda.is_current_stream_capturing = lambda: False
    _replace_guards()
    _replace_streams()
    _note_host_copies()
    _keep_linear_weights()
    _finish_loading_in_v1()


class StandInStream:
    """A stream on which everything is done at once."""

    def __init__(self, *_args: Any, **_named: Any) -> None:
        self.device = torch.device("cpu")

    def nothing(self, *_args: Any, **_named: Any) -> None:
        """There is nothing to wait for."""

    wait_stream = wait_event = record_event = synchronize = record = wait = nothing

    def query(self) -> bool:
        """Everything has been done."""
        return True

    def __enter__(self) -> StandInStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _replace_guards() -> None:
    prefetch, uva = _module("offloader.prefetch"), _module("offloader.uva")
    uva.get_accelerator_view_from_cpu_tensor = lambda tensor: tensor
    uva.is_uva_available = lambda: True
    _edit(prefetch._ModuleOffloader, "__init__", _WithoutDeviceGuard())
    _edit(uva.UVAOffloader, "_maybe_offload_to_cpu", _WithStandInMemory())


def _replace_streams() -> None:
    prefetch = _module("offloader.prefetch")
    _after_init(prefetch.PrefetchOffloader, "copy_stream")
    _after_init(prefetch._ModuleOffloader, "_copy_done_event")


def _note_host_copies() -> None:
    owner = _module("offloader.prefetch")._CpuParamOffloader
    for name in ("_offload_to_cpu_internal", "_update_cpu_storage_from_param"):
        do_after(owner, name, lambda self, *_: _adopt(self._cpu_storage))


def _keep_linear_weights() -> None:
    name = "dispatch_cpu_unquantized_gemm"
    layers = _module("layers.utils")
    packing = find_method(layers, name)

    def plain(layer: Any, remove_weight: bool) -> None:
        del remove_weight
        layer.cpu_linear = torch.nn.functional.linear

    for module in list(sys.modules.values()):
        if vars(module).get(name) is packing:
            setattr(module, name, plain)


def _finish_loading_in_v1() -> None:
    base = _module("offloader.base")
    runner = _module("runner.cpu_v1").CPUModelRunner
    do_after(runner, "load_model", lambda *_args, **_named: base.get_offloader().post_init())


class _Change(ast.NodeTransformer):
    """A change of a method's source in places that are known by their text."""

    places: tuple[str, ...]
    """Each must be found, else the change would be half made."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def find(self, text: str, *, is_part: bool = False) -> str | None:
        """The place that `text` is, or holds; from now on it counts as found."""
        place = next((p for p in self.places if (p in text if is_part else p == text)), None)
        self.found |= set() if place is None else {place}
        return place


class _WithoutDeviceGuard(_Change):
    places = ("should not already be on CPU",)

    def visit_Assert(self, node: ast.Assert) -> ast.Assert | None:
        return None if self.find(ast.unparse(node), is_part=True) else node


class _WithStandInMemory(_Change):
    """Takes out what asks for a CPU device, and puts stand-in memory where bytes move."""

    calls: ClassVar = {
        "p.data.to(device='cpu')": "_stand_in.to_host(p.data)",
        "v.to(device, non_blocking=True)": "_stand_in.to_device(v)",
    }
    asks_module, asks_param = "device == torch.device('cpu')", "p.device.type == 'cpu'"
    places = (asks_module, asks_param, *calls)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        place = self.find(ast.unparse(node.test), is_part=True)
        if place == self.asks_module:
            return None
        if place == self.asks_param:
            node.test = ast.parse("_stand_in.is_host(p.data)", mode="eval").body
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        place = self.find(ast.unparse(node))
        return node if place is None else ast.parse(self.calls[place], mode="eval").body


def _edit(owner: Any, name: str, change: _Change) -> None:
    """Replace a method by its own source with a change in it.

    Raises:
        InternalMovedError: the method is gone, or a place that is to be changed in it.
    """
    method: Any = find_method(owner, name)
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    tree = ast.fix_missing_locations(change.visit(tree))
    if missing := [f"`{place}`" for place in change.places if place not in change.found]:
        where = f"{owner.__name__}.{name}"
        raise InternalMovedError(f"{where}, the place to emulate in it: {', '.join(missing)}")
    names: dict[str, Any] = {}
    space = {**method.__globals__, "_stand_in": sys.modules[__name__]}
    exec(compile(tree, f"<emulation of {name}>", "exec"), space, names)
    setattr(owner, name, names[name])


def _after_init(owner: Any, attribute: str) -> None:
    do_after(owner, "__init__", lambda self, *_, **__: setattr(self, attribute, StandInStream()))


def _adopt(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None, "there is a host copy now"
    _host[tensor.untyped_storage().data_ptr()] = tensor
    return tensor


def _module(role: str) -> Any:
    return VllmModules().module(role)
