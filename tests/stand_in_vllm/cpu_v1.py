"""Runner V1 on a CPU: the same class, made for another device."""

from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class CPUModelRunner(GPUModelRunner):
    def load_model(self, *, load_dummy_weights=False):
        return super().load_model(load_dummy_weights=load_dummy_weights)
