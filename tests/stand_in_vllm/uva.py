"""Views of host memory up to a budget, or copies on forward."""

import torch
from torch.func import functional_call


def is_uva_available():
    return False


def get_accelerator_view_from_cpu_tensor(tensor):
    raise RuntimeError("there is no accelerator")


class UVAOffloader:
    def __init__(self, cpu_offload_max_bytes, uva=True):
        self.cpu_offload_max_bytes = cpu_offload_max_bytes
        self.cpu_offload_bytes = 0
        self.pin_memory = False
        self.uva_offloading = uva and is_uva_available()

    def wrap_modules(self, modules):
        return [self._maybe_offload_to_cpu(module) for module in modules]

    def post_init(self):
        """All is done by now."""

    def _maybe_offload_to_cpu(self, module, prefix=""):
        device = next(module.parameters()).device

        if device == torch.device("cpu"):
            return module

        offloaded_parameters = False
        for _, p in module.named_parameters():
            if self.cpu_offload_bytes >= self.cpu_offload_max_bytes:
                break

            if p.device.type == "cpu" or getattr(p, "_vllm_is_uva_offloaded", False):
                continue

            cpu_data = p.data.to(device="cpu")
            if not self.uva_offloading:
                p.data = cpu_data
            else:
                p.data = get_accelerator_view_from_cpu_tensor(cpu_data)
                p._vllm_is_uva_offloaded = True

            self.cpu_offload_bytes += p.data.nbytes
            offloaded_parameters = True

        if offloaded_parameters and not self.uva_offloading:
            original_forward = module.forward

            def forward(*args):
                module.forward = original_forward
                device_state = {
                    k: v.to(device, non_blocking=True) for k, v in module.state_dict().items()
                }
                output = functional_call(module, device_state, args=args)
                module.forward = forward
                return output

            module.forward = forward

        return module
