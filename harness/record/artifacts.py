"""The runs of a session: one folder each, read only when somebody looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.core import Run
from harness.core.runfiles import RUN_FILE, read_run, write_run

__all__ = ["RunFolder", "read_run", "write_run"]


class RunFolder(Mapping[str, Run]):
    """`runs/` as a read-only mapping of run id to Run; a run is read once, on first access.

    Runs that never finished have no run.json and are not in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cache: dict[str, Run] = {}

    def __getitem__(self, run_id: str) -> Run:
        """Read one run.

        Raises:
            KeyError: no such finished run.
            RecordError: its files are damaged.
        """
        if run_id not in self:
            raise KeyError(run_id)
        if run_id not in self._cache:
            self._cache[run_id] = read_run(self.folder / run_id)
        return self._cache[run_id]

    def __contains__(self, run_id: object) -> bool:
        is_name = isinstance(run_id, str) and Path(run_id).name == run_id
        return is_name and (self.folder / str(run_id) / RUN_FILE).is_file()

    def __iter__(self) -> Iterator[str]:
        if self.folder.is_dir():
            yield from sorted(p.name for p in self.folder.iterdir() if p.name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
