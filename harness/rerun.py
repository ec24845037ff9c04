"""The command line that runs a comparison of two given settings again."""

from __future__ import annotations

import shlex

from harness.core import Case, Setting, Tier

ASSUMED_ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""What `harness compare` takes where nothing is said."""


def compare_command(case: Case) -> str:
    """`harness compare MODEL --baseline ... --target ...`; a planted fault is a comment."""
    model, workload = case.workload.model, case.workload
    words = ["harness", "compare", model.stand_in_for or model.name]
    if model.source == "local":
        words[2] = model.path
    words += ["--baseline", side_text(case.baseline), "--target", side_text(case.target)]
    words += ["--dtype", model.dtype]
    words += ["--workload", workload.name] if workload.name != "default" else []
    words += ["--close"] if case.tier is Tier.LOGPROB else []
    faults = case.target.faults
    return shlex.join(words) + (f"  # with fault {', '.join(faults)} planted" if faults else "")


def side_text(setting: Setting) -> str:
    """A setting as `harness compare` takes one side: variables, then engine arguments."""
    words = [
        f"{name}={value}"
        for name, value in sorted(setting.engine_env().items())
        if value is not None and ASSUMED_ENV.get(name) != value
    ]
    for name, value in setting.engine_kwargs().items():
        flag = "--" + name.replace("_", "-")
        if name == "enforce_eager":
            words += [] if value else ["--no-enforce-eager"]
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        elif value is True:
            words.append(flag)
        else:
            words += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)
