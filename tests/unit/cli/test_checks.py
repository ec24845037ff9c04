"""What an interpreter's facts amount to: what can be tested there, and why not the rest."""

import re

import pytest

from harness.cli.checks import can_test, list_checks

TORCH = {"version": "2.13.0", "cuda_devices": [], "cuda_build": None}
GPU = {**TORCH, "cuda_devices": ["NVIDIA H200", "NVIDIA H200"]}
BOTH = {"v1": "a", "v2": "b"}
VLLM = {"version": "0.32.0", "build": "cpu", "folder": "/x", "runners": BOTH,
        "offloaders": {"uva": "c", "prefetch": "d"}}  # fmt: skip
TRITON = {"version": "3.9.0", "backends": ["amd", "cpu"]}


def facts(**changed):
    usual = {
        "python": "3.12.1",
        "executable": "/x/python",
        "missing": [],
        "torch": "2.13.0",
        "live_torch": TORCH,
        "transformers": "5.1",
        "accelerate": None,
        "vllm": None,
        "triton": None,
        "cores": 2,
        "memory_gib": 8.0,
    }
    return {**usual, **changed}


def lines(**changed):
    return {c.name: (c.ok, c.found) for c in list_checks(facts(**changed))}


def test_a_cpu_build_tests_no_offload_but_its_emulation():
    found = lines(vllm=VLLM, triton=TRITON)

    wanted = "offload none (UVA and prefetch need a GPU; emulation: engine vllm-cpu-emulation)"
    for runner in ("V1", "V2"):
        assert (True, wanted) == found[f"vLLM 0.32.0, runner {runner}"]
        ok, text = found[f"vLLM 0.32.0, runner {runner}, emulation"]
        assert (ok, "UVA, prefetch on CPU tensors" in text) == (True, True)


@pytest.mark.parametrize(
    ("triton", "why"),
    [
        (None, "triton is not installed"),
        ({"version": "3.9.0", "backends": ["amd"]}, "back end called cpu.*3.9.0 has amd"),
    ],
)
def test_runner_v2_on_a_cpu_needs_tritons_interpreter(triton, why):
    found = lines(vllm=VLLM, triton=triton)

    assert found["vLLM 0.32.0, runner V1"][0]
    for name in ("vLLM 0.32.0, runner V2", "vLLM 0.32.0, runner V2, emulation"):
        ok, text = found[name]
        assert not ok
        assert re.search(why, text)


def test_a_cuda_build_offloads_where_there_is_a_gpu():
    cuda = {**VLLM, "build": "cuda"}

    ok, text = lines(vllm=cuda, live_torch=GPU)["vLLM 0.32.0, runner V2"]
    assert (ok, text) == (True, "offload none, UVA, prefetch; pinned memory; 2 x NVIDIA H200")
    ok, text = lines(vllm=cuda)["vLLM 0.32.0, runner V1"]
    assert (ok, text) == (False, "a build for CUDA, and torch sees no CUDA device")


def test_what_a_release_lacks_is_asked_of_its_modules():
    old = {**VLLM, "build": "cuda", "runners": {"v1": "a"}, "offloaders": {"uva": "c"}}

    found = lines(vllm=old, live_torch=GPU)

    assert "offload none, UVA; pinned" in found["vLLM 0.32.0, runner V1"][1]
    assert (False, "this release has no such runner for cuda") == found["vLLM 0.32.0, runner V2"]


def test_accelerate_needs_transformers_too():
    assert lines(accelerate="1.15.0")["accelerate 1.15.0"] == (
        True, "offload cpu_offload, disk_offload, device_map, on the CPU"
    )  # fmt: skip
    found = lines(accelerate="1.15.0", transformers=None)["accelerate 1.15.0"]
    assert (False, "transformers not installed") == found


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"missing": ["torch"], "torch": None, "live_torch": {}}, False),
        ({"live_torch": {"problem": "OSError: libcudart.so"}}, False),
    ],
)
def test_only_an_engine_that_runs_makes_an_interpreter_usable(changed, expected):
    checks = list_checks(facts(accelerate="1", vllm=VLLM, triton=TRITON, **changed))

    assert expected is can_test(checks)
    if not expected:
        assert not [check.name for check in checks if check.engine and check.ok]


def test_a_torch_that_does_not_load_is_quoted():
    found = lines(live_torch={"problem": "OSError: libcudart.so"})

    assert "OSError: libcudart.so" in found["reference engine, simulated device"][1]
