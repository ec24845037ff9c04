"""Engines and interpreters, as a matrix file or the command line names them."""

import os
from pathlib import Path

import pytest

from harness.core import MatrixError, UsageError
from harness.settings import load_matrix
from harness.settings.engines import EngineEntry, find_python, parse_interpreters, split_label

CELLS = "models: [m]\naxes:\n  runner: [v1, v2]\n  offload: [{cpu_offload_gb: 1}]\n"


@pytest.fixture
def pythons(tmp_path):
    """Two files that stand for interpreters: `a` itself, and `b`, a virtual environment."""
    (tmp_path / "b" / "bin").mkdir(parents=True)
    for path in (tmp_path / "a", tmp_path / "b" / "bin" / "python"):
        path.touch()
    return tmp_path


@pytest.fixture
def load(pythons):
    def load_text(text, **options):
        path = pythons / "some.yaml"
        path.write_text(text, encoding="utf-8")
        return load_matrix(path, **options)

    return load_text


def error_of(load, text):
    with pytest.raises(MatrixError) as caught:
        load(text)
    message = str(caught.value)
    return message[message.index("some.yaml") :]


def ids(matrix):
    return [setting.setting_id for setting in matrix.settings]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.28=/opt/python", ("0.28", "/opt/python")),
        ("/opt/python", ("", "/opt/python")),
        ("/opt/a=b/python", ("", "/opt/a=b/python")),
        ("nightly=a=b/python", ("nightly", "a=b/python")),
    ],
)
def test_a_label_ends_at_the_first_equals_sign(text, found):
    assert found == split_label(text)


@pytest.mark.parametrize("text", ["=/opt/python", "0.28=", "", " ", "a b=/opt/python", "a!b=/p"])
def test_a_label_or_path_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="--python"):
        split_label(text)


def test_a_virtual_environment_stands_for_its_python(pythons, monkeypatch):
    monkeypatch.setenv("WHERE", str(pythons))
    monkeypatch.setenv("HOME", str(pythons))

    python = str(pythons / "b" / "bin" / "python")
    assert [python] * 4 == [
        find_python(text, pythons) for text in ("b", str(pythons / "b"), "$WHERE/b", "~/b")
    ]
    assert str(pythons / "a") == find_python("./a", pythons)


def test_a_command_is_looked_up_and_a_link_is_left_one(pythons, monkeypatch):
    (pythons / "b" / "bin" / "mypython").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(pythons / "b" / "bin"), prepend=os.pathsep)

    assert str(pythons / "b" / "bin" / "mypython") == find_python("mypython", Path("/"))


def test_interpreters_keep_their_order_and_ask_for_missing_labels(pythons):
    asked = []

    def ask(engine, python):
        asked.append((engine, python))
        return "0.30.0"

    found = parse_interpreters("vllm", [f"x={pythons / 'b'}", str(pythons / "a")], ask=ask)

    a, b = str(pythons / "a"), str(pythons / "b" / "bin" / "python")
    assert [("x", b), ("0.30.0", a)] == [(e.release, e.python) for e in found]
    assert [("vllm", a)] == asked
    assert (EngineEntry(name="vllm"),) == parse_interpreters("vllm")


def test_an_interpreter_that_cannot_say_is_called_after_its_folder(pythons):
    (entry,) = parse_interpreters("vllm", [str(pythons / "b")], ask=lambda *_: "")

    assert "b" == entry.release


def test_one_label_for_two_interpreters_is_refused(pythons):
    with pytest.raises(UsageError, match=r"label 'x' stands for .*LABEL=PATH"):
        parse_interpreters("vllm", [f"x={pythons / 'a'}", f"x={pythons / 'b'}"])


def test_only_a_slip_in_every_path_ends_the_invocation(pythons):
    with pytest.raises(UsageError, match="there is no interpreter at '/no/such'") as caught:
        parse_interpreters("vllm", ["x=/no/such"])
    assert "\n" not in str(caught.value)

    found = parse_interpreters("vllm", ["x=/no/such", f"y={pythons / 'a'}"])
    assert ["x", "y"] == [entry.release for entry in found]


ENGINES = """\
engine_args: {max_model_len: 128, seed: 1}
engines:
  - {name: vllm, release: "0.28.0", python: b, engine_args: {seed: 2}, env: {A: "1"}}
  - {name: vllm, release: "0.26.0", python: /no/such/python}
  - {name: accelerate}
"""


def test_every_cell_runs_on_every_engine_in_the_order_written(load, pythons):
    settings = load(ENGINES + CELLS).settings

    place = [("vllm", "0.28.0"), ("vllm", "0.26.0"), ("accelerate", "")]
    assert [p for p in place for _ in "12"] == [(s.engine, s.release) for s in settings]
    assert ["v1", "v2"] * 3 == [s.runner for s in settings]
    found = [settings[idx] for idx in (0, 2, 4)]
    python = str(pythons / "b" / "bin" / "python")
    assert [python, "/no/such/python", None] == [s.python for s in found]
    assert [2, 1, 1] == [s.engine_args["seed"] for s in found]
    assert [{"A": "1"}, {}, {}] == [s.env for s in found]


def test_excluded_and_included_cells_may_name_an_engine_or_a_release(load):
    extra = (
        'exclude: [{engine: accelerate}, {release: "0.26.0", runner: v2}]\n'
        "include:\n  - {runner: v2, server: true, offload: {cpu_offload_gb: 2}, engine: vllm}\n"
    )

    found = [(s.release, s.runner, s.server) for s in load(ENGINES + CELLS + extra).settings]

    assert [
        ("0.28.0", "v1", False), ("0.28.0", "v2", False), ("0.28.0", "v2", True),
        ("0.26.0", "v1", False), ("0.26.0", "v2", True),
    ] == found  # fmt: skip


def test_the_command_line_replaces_the_files_engines(load, pythons):
    extra = "exclude: [{engine: accelerate}]\ninclude: [{engine: accelerate}]\n"
    options = {"engine": "vllm", "pythons": [f"new={pythons / 'a'}"]}

    settings = load(ENGINES + CELLS + extra, **options).settings

    assert {("vllm", "new", str(pythons / "a"))} == {
        (s.engine, s.release, s.python) for s in settings
    }
    assert [{"max_model_len": 128, "seed": 1}] * 2 == [s.engine_args for s in settings]


def test_an_interpreter_alone_is_one_of_the_files_only_engine(load, pythons):
    python = [f"x={pythons / 'a'}"]

    assert {"fake"} == {s.engine for s in load("engine: fake\n" + CELLS, pythons=python).settings}
    with pytest.raises(UsageError, match=r"of which engine.*vllm, accelerate; give --engine too"):
        load(ENGINES + CELLS, pythons=python)


def test_a_label_is_asked_of_an_interpreter_without_release(load):
    text = "engines: [{name: vllm, python: a}]\n" + CELLS

    matrix = load(text, ask=lambda engine, python: f"{engine}9")

    assert {"vllm9"} == {s.release for s in matrix.settings}


@pytest.mark.parametrize("written", ["$NO_SUCH_PLACE/bin/python", "${NO_SUCH_PLACE}"])
@pytest.mark.parametrize("value", [None, ""])
def test_an_unset_variable_is_named_with_its_place(load, monkeypatch, written, value):
    monkeypatch.delenv("NO_SUCH_PLACE", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_SUCH_PLACE", value)
    text = f'engines:\n  - name: vllm\n    python: "{written}"\n' + CELLS

    said = error_of(load, text)

    assert said == (
        f"some.yaml:3:13: python {written!r}: environment variable NO_SUCH_PLACE is not set; "
        "set it, or name the interpreter with --python"
    )


@pytest.mark.parametrize("engine", [None, "vllm"])
def test_an_unset_variable_of_a_replaced_entry_is_nobodys_business(
    load, pythons, monkeypatch, engine
):
    monkeypatch.delenv("NO_SUCH_PLACE", raising=False)
    text = "engines: [{name: vllm, python: $NO_SUCH_PLACE}]\n" + CELLS
    asked = []

    def ask(engine, python):
        asked.append(python)
        return "new"

    matrix = load(text, engine=engine, pythons=[str(pythons / "a")], ask=ask)

    assert {str(pythons / "a")} == {s.python for s in matrix.settings}
    assert [str(pythons / "a")] == asked


def test_an_unset_variable_of_the_command_line_is_named(monkeypatch):
    monkeypatch.delenv("NO_SUCH_PLACE", raising=False)
    with pytest.raises(UsageError, match="variable NO_SUCH_PLACE is not set"):
        parse_interpreters("vllm", ["x=$NO_SUCH_PLACE/bin/python"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engine: vllm\nengines: [{name: vllm}]\n", "some.yaml:2:10: engines and engine exclude"),
        ("engines: []\n", "some.yaml:1:10: expected a list with at least one"),
        ("engines: [{release: '1'}]\n", "some.yaml:1:11: key 'name' is missing"),
        ("engines: [{name: vllm, relase: '1'}]\n", "some.yaml:1:24: unknown key 'relase'"),
        (
            "engines: [{name: vllm, release: 0.28}]\n",
            "some.yaml:1:33: release must be text, found 0.28; quote it",
        ),
        ("engines: [{name: vllm, release: a b}]\n", "some.yaml:1:33: release 'a b' must be"),
        (
            "engines: [{name: vllm, release: x}, {name: vllm, release: x, python: a}]\n",
            "some.yaml:1:37: 'vllm-x' is given twice, for the own interpreter and",
        ),
        (
            "engines:\n  - {name: reference, engine_args: {sed: 1}}\n",
            "some.yaml:2:42: Unknown flag --sed for engine 'reference'",
        ),
        (
            "engines: [{name: reference, env: {VLLM_X: '1'}}]\n",
            "some.yaml:4:3: env VLLM_X is not read by engine 'reference'",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(load, text, expected):
    assert expected in error_of(load, text + CELLS)


def test_an_include_entry_of_no_engine_is_refused(load):
    text = CELLS + "include:\n  - {engine: accelerate}\n"

    assert "some.yaml:6:5: this include entry names no engine" in error_of(load, text)


def test_accelerate_has_a_matrix_of_its_own():
    backends = {s.offload.resolved_backend for s in load_matrix(None, engine="accelerate").settings}

    assert {"cpu_offload", "disk_offload", "device_map"} == backends


def test_a_device_map_is_read_as_written(load):
    text = 'models: [m]\nengine: accelerate\naxes:\n  offload: [{device_map: {"": disk}, '

    (setting,) = load(text + "offload_backend: device_map}]\n").settings

    assert {"": "disk"} == setting.offload.device_map


def test_server_is_an_axis(load):
    settings = load("models: [m]\nengine: vllm\naxes:\n  server: [true, false]\n").settings

    assert ["vX-none-eager-server@vllm", "vX-none-eager@vllm"] == [s.setting_id for s in settings]
