"""Which engines a run drives, and under which interpreters: `engines:` of a matrix, `--python`.

Only names places. Whether an interpreter is there, and what it holds, is learned by starting it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.core import OWNED_ENV, Json, UsageError
from harness.core.setting import INSTRUMENTS

from .flags import FLAGS, OFFLOAD_FLAGS, PASSES_UNKNOWN_ON, unknown_flag
from .nodes import Item
from .parse import usual_instruments

Ask = Callable[[str, str], str]
"""(engine, interpreter) -> the label that the interpreter gives itself."""

_KEYS = ("name", "release", "python", "engine_args", "env")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_LABEL_RULE = "must be letters, digits and . _ + - only"
_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)
"""As `os.path.expandvars` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """One engine under one interpreter, and what all its settings share."""

    name: str
    """In the engine registry."""
    release: str = ""
    """Label; decides nothing."""
    python: str | None = None
    """Interpreter's path; None is the harness's own."""
    engine_args: Mapping[str, Json] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """`vllm-0.28.0`, as ids show it."""
        return f"{self.name}-{self.release}" if self.release else self.name


def parse_interpreters(
    engine: str, texts: Sequence[str] = (), *, ask: Ask | None = None, option: str = "--python"
) -> tuple[EngineEntry, ...]:
    """Read `LABEL=PATH` or `PATH`, one for each release of one engine, in the order given.

    Args:
        engine: name of the engine.
        texts: as given; none stands for the harness's own interpreter.
        ask: gives the label of an interpreter that has none.
        option: what the error texts call it.

    Raises:
        UsageError: a text is no interpreter, a label is given twice, or none of the paths exists.
    """
    entries = []
    for text in texts:
        label, path = split_label(text, option)
        python = find_python(path, Path.cwd())
        release = label or _ask_label(ask, engine, python)
        entries.append(EngineEntry(name=engine, release=release, python=python))
    for idx, entry in enumerate(entries):
        if first := _twin(entry, entries[:idx]):
            raise UsageError(
                f"{option}: label {entry.release!r} stands for {first.python} and "
                f"{entry.python}; give each its own, as {option} LABEL=PATH"
            )
    missing = [e.python for e in entries if e.python and not Path(e.python).exists()]
    if entries and len(missing) == len(entries):
        raise UsageError(
            f"{option} {texts[0]!r}: there is no interpreter at {missing[0]!r}; give the path of "
            f"a Python, or of its virtual environment, that has engine {engine!r}"
        )
    return tuple(entries) or (EngineEntry(name=engine),)


def split_label(text: str, option: str = "--python") -> tuple[str, str]:
    """`0.28=/opt/python` -> (`0.28`, `/opt/python`); a path alone has the label `""`.

    Raises:
        UsageError: the label or the path is empty, or the label holds anything else than
            letters, digits and `._+-`.
    """
    label, is_labelled, path = text.partition("=")
    if not is_labelled or os.sep in label:
        label, path = "", text
    elif not _LABEL.fullmatch(label):
        raise UsageError(f"{option} {text!r}: label {label!r} {_LABEL_RULE}")
    if not path.strip():
        raise UsageError(f"{option} {text!r} names no interpreter; give LABEL=PATH or PATH")
    return label, path


def find_python(text: str, base: Path) -> str:
    """The interpreter that `text` names: a path, a virtual environment, or a command's name.

    Symbolic links stay: a virtual environment's Python is known by its own path.

    Args:
        text: with `~` and `$VAR` as a shell has them.
        base: folder that a relative path starts from.

    Raises:
        UsageError: a variable in it is not set: what it stands for is nowhere to be learned.
    """
    for name in (short or long for short, long in _VARIABLE.findall(text)):
        if not os.environ.get(name):
            raise UsageError(
                f"python {text!r}: environment variable {name} is not set; "
                "set it, or name the interpreter with --python"
            )
    expanded = os.path.expandvars(os.path.expanduser(text))
    path = base.absolute() / expanded
    if os.sep not in expanded and not path.exists():
        path = Path(shutil.which(expanded) or path)
    return str(path / "bin" / "python" if path.is_dir() else path)


def read_names(item: Item) -> tuple[str, ...]:
    """Read the engines of an `engines:` section, each once; where they live is left aside.

    Raises:
        MatrixError: with the place of what is wrong.
    """
    names = item.sequence(lambda each: _name_of(each, each.mapping(_KEYS)))
    return tuple(dict.fromkeys(names))


def read_entries(item: Item, *, ask: Ask | None = None) -> tuple[EngineEntry, ...]:
    """Read the `engines:` section of a matrix file.

    Raises:
        MatrixError: with the place of what is wrong.
    """
    entries: list[EngineEntry] = []

    def read(each: Item) -> None:
        entry = _read_entry(each, ask)
        if first := _twin(entry, entries):
            raise each.error(
                f"{entry.place!r} is given twice, for {first.python or 'the own interpreter'} and "
                f"{entry.python or 'the own interpreter'}; give each its own `release`"
            )
        entries.append(entry)

    item.sequence(read)
    return tuple(entries)


def read_engine_args(item: Item | None, engine: str) -> dict[str, Json]:
    """Read an `engine_args:` mapping as `engine` takes it."""
    keys = item.mapping() if item else {}
    for name, value in keys.items():
        if name in OFFLOAD_FLAGS or name == "enforce_eager":
            raise value.error(f"engine argument {name!r} belongs under axes")
        if engine == "reference" and (name not in FLAGS or FLAGS[name].refusal):
            raise value.error(FLAGS[name].refusal if name in FLAGS else
                              str(unknown_flag(name, engine=engine)))  # fmt: skip
        _check_engine_arg(name, value, engine)
    return {name: value.json() for name, value in keys.items()}


def read_env(item: Item | None) -> dict[str, str | None]:
    """Read an `env:` mapping; null unsets."""
    env: dict[str, str | None] = {}
    for name, value in (item.mapping() if item else {}).items():
        if name in OWNED_ENV:
            raise value.error(f"env {name} is decided by an axis; put it under axes")
        if "=" in name or "\0" in name:
            raise value.error(f"env name {name!r} must not hold '='")
        if value.value is not None and not isinstance(value.value, str):
            raise value.error(f"env {name} must be text or null, found {value.shown}; quote it")
        env[name] = value.value
    return env


def read_instruments(item: Item | None, engine: str) -> tuple[str, ...]:
    """Read `instruments:`; without it the engine's usual ones."""
    if item is None:
        return usual_instruments(engine)
    if item.value == []:
        return ()
    return tuple(dict.fromkeys(item.sequence(lambda each: each.text(INSTRUMENTS))))


def _read_entry(item: Item, ask: Ask | None) -> EngineEntry:
    keys = item.mapping(_KEYS)
    name = _name_of(item, keys)
    python = _read_python(keys["python"]) if "python" in keys else None
    if "release" in keys:
        release = _read_release(keys["release"])
    else:
        release = "" if python is None else _ask_label(ask, name, python)
    return EngineEntry(
        name=name,
        release=release,
        python=python,
        engine_args=read_engine_args(keys.get("engine_args"), name),
        env=read_env(keys.get("env")),
    )


def _name_of(item: Item, keys: Mapping[str, Item]) -> str:
    if "name" not in keys:
        raise item.error("key 'name' is missing: an engine, e.g. vllm")
    return keys["name"].text()


def _read_python(item: Item) -> str:
    try:
        return find_python(item.text(), Path(item.file).absolute().parent)
    except UsageError as error:
        raise item.error(str(error)) from None


def _read_release(item: Item) -> str:
    if not isinstance(item.value, str):
        raise item.error(f"release must be text, found {item.shown}; quote it")
    if not _LABEL.fullmatch(item.value):
        raise item.error(f"release {item.value!r} {_LABEL_RULE}")
    return item.value


def _ask_label(ask: Ask | None, engine: str, python: str) -> str:
    """What the interpreter says, else the name of the folder that it lives in."""
    label = ask(engine, python) if ask else ""
    if label:
        return label
    folders = [part for part in Path(python).parts[:-1] if part != "bin"]
    return re.sub(r"[^A-Za-z0-9._+-]", "_", folders[-1]).lstrip("._+-") if folders else ""


def _twin(entry: EngineEntry, others: Collection[EngineEntry]) -> EngineEntry | None:
    return next((other for other in others if other.place == entry.place), None)


def _check_engine_arg(name: str, item: Item, engine: str) -> None:
    flag = FLAGS.get(name)
    if flag is not None:
        choices = () if engine in PASSES_UNKNOWN_ON else flag.choices
        read: dict[str, Callable[[], object]] = {
            "int": item.whole,
            "float": item.number,
            "str": lambda: item.text(choices),
            "bool": item.flag,
        }
        read[flag.kind]()
