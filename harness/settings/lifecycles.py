"""Named lifecycles: what happens to an engine between one generate and the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.core import Json, ModelSpec, Step

GENERATE = Step()
PATCHED = ("model.layers.1.self_attn.o_proj.weight", "model.layers.6.mlp.down_proj.weight")
"""Parameters that a patch overwrites in places: one near each end of a stack of eight."""
PATCHED_LFM2 = tuple(f"model.layers.{layer}.feed_forward.w2.weight" for layer in (1, 6))
NUM_CYCLES = 50

Changed = Callable[[ModelSpec], Path]
"""Gives the folder of a checkpoint with the model's shapes and other weights."""


def _reload(path: str, label: str) -> Step:
    return Step(kind="reload_weights", args={"path": path, "label": label})


def _patch(model: ModelSpec, seed: int) -> Step:
    last = model.num_layers - 1
    patched = PATCHED_LFM2 if model.architecture == "Lfm2ForCausalLM" else PATCHED
    params = [name.replace("layers.6.", f"layers.{min(6, last)}.") for name in patched]
    if model.config.get("quantization_config"):  # codes are no numbers that a patch could write
        params = [f"{name}_scale" for name in params]
    args: Mapping[str, Json] = {"seed": seed, "num_values": 64, "params": params}
    return Step(kind="apply_sparse_weight_patches", args=args)


def _other(kind: str, **offload: Json) -> Step:
    return Step(kind=kind, args={"offload": offload})


def lifecycle_steps(name: str, model: ModelSpec, changed: Changed) -> tuple[Step, ...]:
    """The steps of the lifecycle called `name`.

    Args:
        name: one of `LIFECYCLES`.
        model: whose checkpoint is reloaded and whose layers are patched.
        changed: asked only where the lifecycle loads other weights.
    """
    again = [GENERATE] * 3
    steps: Mapping[str, Callable[[], Sequence[Step]]] = {
        "generates": lambda: again,
        "reload-changed": lambda: [GENERATE, _reload(str(changed(model)), "changed"), *again],
        "reload-same": lambda: [GENERATE, _reload(model.path, "same"), GENERATE],
        "patch": lambda: [GENERATE, _patch(model, 1), *again],
        "patch-sleep": lambda: [GENERATE, _patch(model, 1), *SLEEP_1, GENERATE, GENERATE],
        "sleep-1": lambda: [GENERATE, *SLEEP_1, GENERATE, GENERATE],
        "sleep-2": lambda: [GENERATE, *_sleep_2(model), GENERATE, GENERATE],
        "failure": lambda: [
            *(GENERATE, Step(kind="fail_forward", args={"layer": model.num_layers // 2})),
            *(GENERATE, GENERATE),
        ],
        "abort": lambda: [GENERATE, Step(kind="abort_request"), GENERATE],
        "engine-before": lambda: [
            _other("engine_before", cpu_offload_gb=1, pin_memory=False),
            _other("engine_before", offload_group_size=1, offload_prefetch_step=2, uva=False),
            GENERATE,
        ],
        "engine-beside": lambda: [
            *(GENERATE, _other("engine_beside", offload_group_size=1, offload_prefetch_step=2)),
            *(GENERATE, Step(kind="end_beside"), GENERATE),
        ],
        "sleep-cycles": lambda: [GENERATE, *([*SLEEP_1, GENERATE] * NUM_CYCLES)],
        "reload-cycles": lambda: [GENERATE, *_reload_cycles(model, changed)],
    }
    return tuple(steps[name]())


def _reload_cycles(model: ModelSpec, changed: Changed) -> list[Step]:
    """Other weights and the model's own in turn, each followed by a generate."""
    paths = [str(changed(model)), model.path] * (NUM_CYCLES // 2)
    labels = ["changed", "same"] * (NUM_CYCLES // 2)
    return [
        step
        for path, label in zip(paths, labels, strict=True)
        for step in (_reload(path, label), GENERATE)
    ]


def _sleep_2(model: ModelSpec) -> list[Step]:
    return [
        Step(kind="sleep", args={"level": 2}),
        Step(kind="wake_up", args={"tags": ["weights"]}),
        _reload(model.path, "same"),
        Step(kind="wake_up", args={"tags": ["kv_cache"]}),
    ]


SLEEP_1 = [Step(kind="sleep", args={"level": 1}), Step(kind="wake_up")]
LIFECYCLES = (
    *("generates", "reload-changed", "reload-same", "patch", "patch-sleep", "sleep-1", "sleep-2"),
    *("failure", "abort", "engine-before", "engine-beside", "sleep-cycles", "reload-cycles"),
)
"""Lifecycles by name; each is also the name of a workload."""
