from dataclasses import fields, replace

import pytest

from harness.core import HarnessError, OffloadConfig, SamplingParams, Setting, Step
from harness.engines import EngineOutOfMemory, EngineRefused, InternalMovedError, view_of
from harness.engines.reference import ReferenceModules
from harness.engines.reference_args import engine_kwargs
from tests.live import PREFETCH, UVA, build_workload, worker_of


def test_defaults_fit_the_workload_and_give_way_to_the_setting():
    workload = replace(
        build_workload(),
        prompt_token_ids=((1,) * 70,),
        sampling_params=SamplingParams(max_tokens=64),
        seed=5,
    )

    kwargs = engine_kwargs(Setting(offload=UVA), workload, num_threads=3)
    given = engine_kwargs(
        Setting(engine_args={"max_model_len": 140, "max_num_seqs": 2}), workload, num_threads=1
    )

    assert kwargs["max_model_len"] == 192
    assert kwargs["max_num_seqs"] == 8
    assert (kwargs["seed"], kwargs["num_threads"]) == (5, 3)
    assert kwargs["dtype"] == workload.model.dtype
    assert kwargs["cpu_offload_gb"] == UVA.cpu_offload_gb
    assert (given["max_model_len"], given["max_num_seqs"]) == (140, 2)


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_the_extension_sees_the_runner_that_walking_the_engine_leads_to(live_engine, runner):
    engine = live_engine(runner=runner, offload=PREFETCH)

    core = engine.llm.llm_engine.engine_core.engine_core
    walked = core.model_executor.driver_worker.worker.model_runner
    view = view_of(worker_of(engine))

    assert view.runner is walked
    assert view.runner_version == runner
    assert view.offloader is walked.offloader
    assert engine.probe().runner_class == f"harness.refengine.runner.{runner}.GPUModelRunner"


@pytest.mark.parametrize("stages", [1, 2])
def test_a_patch_of_a_parameter_that_no_rank_has_is_an_error_and_writes_nothing(
    live_engine, stages
):
    engine = live_engine(offload=UVA, engine_args={"pipeline_parallel_size": stages})
    before = [output.token_ids for output in engine.generate(0)]
    params = [name for name, _ in worker_of(engine).model_runner.model.named_parameters()][:1]

    def patch(*names):
        args = {"seed": 1, "num_values": 50, "params": (*params, *names)}
        engine.do(Step(kind="apply_sparse_weight_patches", args=args))

    with pytest.raises(HarnessError, match=rf"params='no\.such' .* no rank .*\(of {stages}\)"):
        patch("no.such")
    assert before == [output.token_ids for output in engine.generate(0)]
    patch()


def test_answers_carry_prompt_tokens_and_logprobs(live_engine):
    engine = live_engine(runner="v2")

    outputs = engine.generate(1)

    workload = build_workload()
    assert tuple(o.prompt_token_ids for o in outputs) == workload.prompt_token_ids
    assert all(len(o.token_ids) == workload.sampling_params.max_tokens for o in outputs)
    assert all(len(o.logprobs.top[0]) == 5 for o in outputs)
    assert {o.step_idx for o in outputs} == {1}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"enforce_eager": False, "engine_args": {"device": "cuda"}}, "enforce_eager=False"),
        ({"engine_args": {"max_num_sequences": 2}}, "Did you mean 'max_num_seqs'"),
        ({"engine_args": {"max_num_seqs": "many"}}, "max_num_seqs='many'"),
        ({"engine_args": {"max_model_len": 8}}, "max_model_len=8"),
    ],
)
def test_an_impossible_setting_is_refused_with_the_engines_reason(live_engine, fields, reason):
    with pytest.raises(EngineRefused, match=reason):
        live_engine(**fields).generate(0)


def test_a_model_that_does_not_fit_is_out_of_memory_and_fits_with_offload(live_engine):
    small = {"device_memory_bytes": 6_000_000, "max_num_seqs": 1, "max_model_len": 64}

    with pytest.raises(EngineOutOfMemory, match="out of device memory"):
        live_engine(engine_args=small)

    offload = OffloadConfig(offload_group_size=2, offload_prefetch_step=1)
    engine = live_engine(engine_args=small, offload=offload)
    assert engine.probe().memory.device_capacity_bytes == 6_000_000


def test_a_module_that_is_gone_is_named():
    with pytest.raises(InternalMovedError, match=r"harness\.refengine\.runner\.v3"):
        ReferenceModules().module("runner.v3")


def test_every_engine_argument_is_in_the_effective_configuration(live_engine):
    engine = live_engine(runner="v2", engine_args={"max_num_seqs": 3})

    effective = engine.probe().effective_config

    config = (
        engine.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.config
    )
    names = {f.name for f in fields(config)} - {"offload"}
    assert names | {f.name for f in fields(config.offload)} == set(effective)
    assert effective["max_num_seqs"] == 3
