from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.core import RunKey, Setting
from harness.launch import Launcher
from tests.builders import build_workload


def build_key(script: dict[str, Any] | None = None, **fields: Any) -> RunKey:
    """A launch of the scripted engine."""
    args = {} if script is None else {"script": script}
    setting = Setting(engine="fake", engine_args=args, **fields)
    return RunKey(setting=setting, workload=build_workload())


@pytest.fixture
def make_launcher(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    opened: list[Launcher] = []

    def make(**options: Any) -> Launcher:
        launcher = Launcher(tmp_path / "runs", **{"jobs": 2, "deadline_s": 60, **options})
        opened.append(launcher.__enter__())
        return launcher

    yield make
    for launcher in opened:
        launcher.__exit__(None, None, None)
