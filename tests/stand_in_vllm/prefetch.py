"""A prefetch offloader: a ring of slots, hooks that wait and start copies, copies on a stream."""

import torch
from vllm.model_executor.offloader.base import should_pin_memory


class Placeholder:
    """A stream or event of a platform that has none: whoever uses it has not replaced it."""


class StaticBufferPool:
    def __init__(self, params, slot_capacity):
        self.slot_capacity = slot_capacity
        self._buffers = {
            (name, tuple(tensor.shape)): [torch.empty_like(tensor) for _ in range(slot_capacity)]
            for name, tensor in params.items()
        }
        self.total_bytes = sum(b.nbytes for ring in self._buffers.values() for b in ring)


def _get_next_prefetch_index(index, prefetch_step, module_count):
    target = (index + prefetch_step) % module_count
    if prefetch_step < module_count and target % prefetch_step != index % prefetch_step:
        target = index % prefetch_step
    return target


class PrefetchOffloader:
    def __init__(self, prefetch_step):
        self.prefetch_step = prefetch_step
        self.copy_stream = Placeholder()
        self.module_offloaders = []
        self.buffer_pool = None
        self.total_offloaded_bytes = 0

    def wrap_modules(self, modules):
        modules = list(modules)
        for index, module in enumerate(modules):
            self.module_offloaders.append(_ModuleOffloader(module, self.copy_stream, index))
        for index, module in enumerate(modules):
            self._hook_module_forward(index, module)
        return modules

    def _hook_module_forward(self, index, module):
        original = module.forward

        def forward(*args):
            self._wait_for_layer(index)
            output = original(*args)
            count = len(self.module_offloaders)
            self._start_prefetch(_get_next_prefetch_index(index, self.prefetch_step, count))
            return output

        module.forward = forward

    def _wait_for_layer(self, layer_idx):
        offloader = self.module_offloaders[layer_idx]
        assert not torch.cuda.is_current_stream_capturing()
        self.copy_stream.wait_event(offloader._copy_done_event)

    def _start_prefetch(self, layer_idx):
        self.module_offloaders[layer_idx].start_onload_to_static()

    def post_init(self):
        for offloader in self.module_offloaders:
            for each in offloader._param_offloaders.values():
                each._update_cpu_storage_from_param()
        first = self.module_offloaders[0]._param_offloaders
        storages = {name: each._cpu_storage for name, each in first.items()}
        self.buffer_pool = StaticBufferPool(storages, self.prefetch_step)
        for index, offloader in enumerate(self.module_offloaders):
            offloader.assign_buffer_slot(self.buffer_pool, index % self.prefetch_step)
            self.total_offloaded_bytes += offloader.offloaded_bytes
        for index in range(min(self.prefetch_step, len(self.module_offloaders))):
            self.module_offloaders[index].start_onload_to_static()


class _ModuleOffloader:
    def __init__(self, module, copy_stream, layer_idx):
        self.module = module
        self.device = next(module.parameters()).device
        self.copy_stream = copy_stream
        self.layer_idx = layer_idx
        self._copy_done_event = Placeholder()
        self._buffer_slot_idx = 0

        assert self.device != torch.device("cpu"), "these should not already be on CPU"

        self._param_offloaders = {
            name: _CpuParamOffloader(module, name) for name, _ in module.named_parameters()
        }

    @property
    def offloaded_bytes(self):
        return sum(each._cpu_storage.nbytes for each in self._param_offloaders.values())

    def assign_buffer_slot(self, pool, slot_idx):
        self._buffer_slot_idx = slot_idx
        for name, each in self._param_offloaders.items():
            buffer = pool._buffers[name, tuple(each._cpu_storage.shape)][slot_idx]
            each._gpu_buffer = buffer
            each._param.data = buffer

    def start_onload_to_static(self):
        self.copy_stream.wait_event("what computes from the slot")
        for each in self._param_offloaders.values():
            each._gpu_buffer.copy_(each._cpu_storage, non_blocking=True)
        self.copy_stream.record_event(self._copy_done_event)


class _CpuParamOffloader:
    def __init__(self, module, param_name):
        self._param = module.get_parameter(param_name)
        self._cpu_storage = None
        self._gpu_buffer = None
        self._offload_to_cpu_internal()

    def _offload_to_cpu_internal(self):
        assert not should_pin_memory()
        self._cpu_storage = self._param.data.clone()
        self._param.data = self._cpu_storage

    def _update_cpu_storage_from_param(self):
        self._cpu_storage = self._param.data.clone()
        self._param.data = self._cpu_storage
