import os
import select
import signal
import warnings

import pytest

from harness.refengine import (
    ConfigError,
    EngineConfig,
    EngineCoreError,
    EngineDeadError,
    OutOfDeviceMemoryError,
    SamplingParams,
)
from harness.refengine.core_process import config_from_json, to_json

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=2, stop_token_ids=(1,))


class Extension:
    """Runs in the core's process."""

    def process_id(self):
        return os.getpid()

    def die(self, code):
        os._exit(code)

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(self, error):
        raise {"key": KeyError, "memory": OutOfDeviceMemoryError}[error]("as asked")

    def no_json(self):
        return object()


@pytest.fixture
def make_core_llm(make_llm, engine_env):
    def make(model=None, **args):
        for engine in make_llm.engines:  # the environment is frozen while one lives in process
            engine.shutdown()
        engine_env.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
        return make_llm(model, worker_extension_cls=f"{__name__}.Extension", **args)

    return make


def test_core_in_its_own_process_gives_the_same_answers(make_llm, make_core_llm, make_checkpoint):
    folder = make_checkpoint()
    prompts = {"prompt_token_ids": [[5, 6, 7], [9]], "sampling_params": PARAMS}
    inside = make_llm(folder).generate(**prompts)
    core = make_core_llm(folder, offload_group_size=2)

    assert inside == core.generate(**prompts)
    assert core.collective_rpc("process_id") == [core.llm_engine.engine_core.process.pid]
    assert core.collective_rpc("process_id") != [os.getpid()]


def test_shutdown_ends_the_process(make_core_llm):
    llm = make_core_llm()
    process = llm.llm_engine.engine_core.process
    llm.shutdown()

    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("method", "args", "how"), [("die", (3,), "exit code 3"), ("kill", (), "signal 9")]
)
def test_core_that_dies_is_reported_and_never_waited_for(make_core_llm, method, args, how):
    llm = make_core_llm()

    with pytest.raises(EngineDeadError, match=f"{how} during 'collective_rpc'"):
        llm.collective_rpc(method, args)
    with pytest.raises(EngineDeadError):
        llm.generate(prompt_token_ids=[[5]], sampling_params=PARAMS)


def test_errors_cross_with_their_type_and_trace_and_the_core_lives_on(make_core_llm):
    llm = make_core_llm()

    with pytest.raises(OutOfDeviceMemoryError, match="as asked") as caught:
        llm.collective_rpc("fail", ("memory",))
    assert "in fail" in caught.value.__notes__[0]
    with pytest.raises(EngineCoreError, match="KeyError: 'as asked'"):
        llm.collective_rpc("fail", ("key",))
    with pytest.raises(TypeError, match="no JSON form for object"):
        llm.collective_rpc("no_json")
    with pytest.raises(ConfigError, match="has 500 prompt tokens"):
        llm.generate(prompt_token_ids=[[5] * 500], sampling_params=PARAMS)
    assert len(llm.generate(prompt_token_ids=[[5]], sampling_params=PARAMS)) == 1


def test_start_that_fails_raises_the_cores_own_error(make_core_llm):
    with pytest.raises(OutOfDeviceMemoryError):
        make_core_llm(device_memory_bytes=1000)


def test_arguments_without_json_form_are_refused_before_they_are_sent(make_core_llm):
    llm = make_core_llm()

    with pytest.raises(TypeError, match="no JSON form for object"):
        llm.collective_rpc("fail", (object(),))
    assert [llm.llm_engine.engine_core.process.pid] == llm.collective_rpc("process_id")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_core_ends_when_its_parent_dies(make_checkpoint, make_core_llm):
    folder = make_checkpoint()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parent = os.fork()
    if parent == 0:
        try:
            make_core_llm(folder)
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(parent, 0)

    # The core inherited the writing end: the pipe ends when the core does.
    assert select.select([reader], [], [], 30)[0] == [reader]
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_configuration_survives_the_pipe(make_checkpoint):
    config = EngineConfig.from_args(
        make_checkpoint(), offload_group_size=4, offload_params=["mlp", "o_proj"], seed=3
    )

    assert config == config_from_json(to_json(config))
