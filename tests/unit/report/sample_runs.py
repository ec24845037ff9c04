"""Scripted runs for the report's tests, built from core types alone: no engine, no judge."""

from __future__ import annotations

import random
from dataclasses import replace

from harness.core import (
    BufferPoolInfo,
    Expectation,
    HostInfo,
    Logprobs,
    MemoryTrace,
    ModelSpec,
    OffloadConfig,
    ParamPlacement,
    ProbeSnapshot,
    RequestOutput,
    Run,
    RunStatus,
    Setting,
    Workload,
)

PROJECTIONS = {"qkv_proj": 196_608, "o_proj": 65_536, "gate_up_proj": 524_288, "down_proj": 262_144}
CLASSES = {"none": "NoopOffloader", "uva": "UVAOffloader", "prefetch": "PrefetchOffloader"}
MIB = 1024**2


def prefetch(group, num, step, *params, pin=True):
    return OffloadConfig(
        offload_group_size=group,
        offload_num_in_group=num,
        offload_prefetch_step=step,
        offload_params=frozenset(params),
        pin_memory=pin,
    )


def uva(gib, *params, pin=True, view=True):
    selectors = frozenset(params)
    return OffloadConfig(cpu_offload_gb=gib, cpu_offload_params=selectors, pin_memory=pin, uva=view)


def make_model(name="tiny-llama", layers=8):
    config = {"num_hidden_layers": layers, "vocab_size": 2048, "hidden_size": 256}
    return ModelSpec(name=name, architecture="LlamaForCausalLM", config=config, path="models/x")


def make_workload(model):
    rng = random.Random(7)
    lengths = (6, 9, 17, 32, 64, 100, 180, 256)
    prompts = tuple(tuple(rng.randrange(2048) for _ in range(n)) for n in lengths)
    return Workload(name="default", model=model, prompt_token_ids=prompts)


def make_expected(model, setting):
    """A stand-in for the plan's oracle; good enough to look right on a page."""
    offload, layers = setting.offload, range(model.num_layers)
    backend = offload.resolved_backend
    if backend == "none":
        return Expectation(runner=setting.runner, backend="none")
    group, num = offload.offload_group_size or 1, offload.offload_num_in_group
    chosen = [i for i in layers if backend == "uva" or i % group >= group - num]
    selectors = offload.offload_params or offload.cpu_offload_params or set(PROJECTIONS)
    budget = offload.cpu_offload_gb * 1024**3 if backend == "uva" else float("inf")
    names, total = [], 0
    for idx in chosen:
        for part, size in PROJECTIONS.items():
            if part in selectors and total < budget:
                names.append(f"model.layers.{idx}.{part}.weight")
                total += size
    step = offload.offload_prefetch_step if backend == "prefetch" else 0
    per_layer = sum(size for part, size in PROJECTIONS.items() if part in selectors)
    return Expectation(
        runner=setting.runner,
        backend=backend,
        offloaded_params=tuple(names),
        offloaded_layers=tuple(sorted({int(n.split(".")[2]) for n in names})),
        offloaded_bytes=total,
        pool_bytes=per_layer * step,
        slot_capacity=step,
        slots={idx: n % step for n, idx in enumerate(chosen)} if step else {},
        is_pinned=offload.pin_memory,
        is_uva=backend == "uva" and offload.uva,
    )


def make_probe(model, setting, expected, *, installed=True, warnings=(), drift=()):
    live = expected if installed else Expectation(runner=setting.runner, backend="none")
    wanted = set(live.offloaded_params)
    params = [
        ParamPlacement(
            name=(name := f"model.layers.{idx}.{part}.weight"),
            layer_idx=idx,
            shape=(size // 1024, 256),
            dtype="float32",
            num_bytes=size,
            space=("pinned" if live.is_pinned else "host") if name in wanted else "device",
            is_offloaded=name in wanted,
            is_pinned=name in wanted and live.is_pinned,
            is_uva=name in wanted and live.is_uva,
            slot_idx=live.slots.get(idx) if name in wanted else None,
        )
        for idx in range(model.num_layers)
        for part, size in PROJECTIONS.items()
    ]
    params.append(
        ParamPlacement(
            name="model.embed_tokens.weight",
            layer_idx=None,
            shape=(2048, 256),
            dtype="float32",
            num_bytes=2 * MIB,
            space="device",
        )
    )
    pool = None
    if live.slot_capacity:
        pool = BufferPoolInfo(
            slot_capacity=live.slot_capacity, num_bytes=live.pool_bytes, slots=live.slots
        )
    weights = sum(p.num_bytes for p in params) - live.offloaded_bytes
    kinds = {"weights": weights, "kv_cache": 3 * MIB, "buffer_pool": live.pool_bytes}
    used = sum(kinds.values()) + 40_960
    return ProbeSnapshot(
        engine_version="0.1.0",
        runner_class=f"refengine.runner.{setting.runner}.GPUModelRunner",
        runner=setting.runner,
        offloader_class=CLASSES[live.backend],
        reported_offloaded_bytes=live.offloaded_bytes,
        effective_config={"enforce_eager": True, "max_num_seqs": 8, **setting.engine_kwargs()},
        params=tuple(params),
        buffer_pool=pool,
        memory=MemoryTrace(
            device_bytes=used,
            device_peak_bytes=used + MIB,
            pinned_bytes=live.offloaded_bytes if live.is_pinned else 0,
            host_bytes=0 if live.is_pinned else live.offloaded_bytes,
            by_kind=kinds,
        ),
        warnings=tuple(warnings),
        drift=tuple(drift),
    )


def make_outputs(workload, *, wrong=(), first=3, text="the cat sat on the mat and saw"):
    """Equal answers for equal arguments; requests in `wrong` differ from token `first` on."""
    answers = []
    for idx, prompt in enumerate(workload.prompt_token_ids):
        rng = random.Random(100 + idx)
        good = [rng.randrange(2048) for _ in range(64)]
        other = [rng.randrange(2048) if rng.random() < 0.9 else t for t in good]
        other[first] = (good[first] + 5) % 2048
        bad = idx in wrong
        ids = good[:first] + other[first:] if bad else good
        rows = [[good[i], other[i], 11, 12, 13] for i in range(64)]
        top = [(-2.1, -0.3, -4.0, -5.0, -6.0) if bad else (-0.2, -2.0, -4.0, -5.0, -6.0)] * 64
        chosen = tuple(-0.3 if t != g else row[0] for t, g, row in zip(ids, good, top, strict=True))
        answers.append(
            RequestOutput(
                request_id=f"r{idx}",
                step_idx=0,
                prompt_token_ids=prompt,
                token_ids=tuple(ids),
                logprobs=Logprobs(
                    chosen=chosen, top_token_ids=tuple(map(tuple, rows)), top=tuple(top)
                ),
                finish_reason="length",
                text=f"{text} a dog." if bad else f"{text} the moon.",
            )
        )
    return tuple(answers)


def make_run(run_id, workload, setting, **changes):
    probe_kwargs = {k: changes.pop(k) for k in ("installed", "warnings", "drift") if k in changes}
    expected = make_expected(workload.model, setting)
    run = Run(
        run_id=run_id,
        setting=setting,
        status=RunStatus.OK,
        outputs=make_outputs(workload),
        probe=make_probe(workload.model, setting, expected, **probe_kwargs),
        host=HostInfo(
            python="3.11.9", platform="Linux x86_64", cpu_count=2, num_threads=1, torch="2.13.0"
        ),
    )
    return replace(run, **changes)


MODEL = make_model()
WORKLOAD = make_workload(MODEL)


def sides(**changes):
    left = make_run("left", WORKLOAD, Setting(runner="v1"))
    return left, make_run("right", WORKLOAD, Setting(runner="v1", offload=uva(1)), **changes)
