"""The command line that runs a comparison of two given settings again."""

from __future__ import annotations

import json
import shlex

from harness.core import Case, Json, Setting, Tier
from harness.settings.flags import FLAGS, GRAPHS_BY_DEFAULT, read_literal

ASSUMED_ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""What `harness compare` takes where nothing is said."""


def compare_command(case: Case) -> str:
    """`harness compare MODEL --baseline ... --target ...`; a planted fault is a comment."""
    model, workload = case.workload.model, case.workload
    words = ["harness", "compare", model.stand_in_for or model.name]
    if model.source == "local":
        words[2] = model.path
    words += engine_words(case.baseline)
    words += ["--baseline", side_text(case.baseline), "--target", side_text(case.target)]
    words += ["--dtype", model.dtype]
    words += ["--workload", workload.name] if workload.name != "default" else []
    words += ["--close"] if case.tier is Tier.LOGPROB else []
    faults = case.target.faults
    return shlex.join(words) + (f"  # with fault {', '.join(faults)} planted" if faults else "")


def engine_words(setting: Setting, *, always: bool = False) -> list[str]:
    """`--engine` and `--python`, as every verb takes them.

    Args:
        setting: of the engine.
        always: names the embedded engine too, which is what is meant without the option.
    """
    words = ["--engine", setting.engine] if always or setting.engine != "reference" else []
    if setting.python is None:
        return words
    label = f"{setting.release}=" if setting.release else ""
    return [*words, "--python", label + setting.python]


def side_text(setting: Setting) -> str:
    """A setting as `harness compare` takes one side: variables, then engine arguments."""
    words = [
        f"{name}={value}"
        for name, value in sorted(setting.engine_env().items())
        if value is not None and ASSUMED_ENV.get(name) != value
    ]
    kwargs = setting.engine_kwargs()
    if setting.offload.device_map:
        kwargs["device_map"] = dict(setting.offload.device_map)
    for name, value in kwargs.items():
        words += _flag_words(name, value, setting.engine)
    return shlex.join(words)


def _flag_words(name: str, value: Json, engine: str) -> list[str]:
    """One engine argument as command-line words."""
    flag = "--" + name.replace("_", "-")
    if name == "enforce_eager":
        is_usual = value == (engine not in GRAPHS_BY_DEFAULT)
        return [] if is_usual else [flag if value else "--no-enforce-eager"]
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag.removeprefix("--")]
    if name in FLAGS and isinstance(value, list):
        return [flag, *value]
    if isinstance(value, float):
        short = f"{value:g}"
        return [flag, short if float(short) == value else repr(value)]
    is_plain = isinstance(value, str) and (name in FLAGS or read_literal([value]) == value)
    return [flag, value if is_plain else json.dumps(value)]
