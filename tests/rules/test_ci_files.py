"""The CI files fit their services' schemas, and name only scripts that exist."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "ci/buildkite.yaml": "vendor.buildkite",
    ".github/workflows/offload.yml": "vendor.github-workflows",
}


def check(schema, path):
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("name", "schema"), FILES.items())
def test_ci_file_fits_its_schema(name, schema):
    child = check(schema, ROOT / name)

    assert 0 == child.returncode, child.stdout + child.stderr


@pytest.mark.parametrize(("name", "schema"), FILES.items())
def test_a_broken_ci_file_is_refused(name, schema, tmp_path):
    data = yaml.safe_load((ROOT / name).read_text())
    data["steps" if "steps" in data else "jobs"] = 7
    broken = tmp_path / "broken.yml"
    broken.write_text(yaml.safe_dump(data))

    assert 0 != check(schema, broken).returncode


@pytest.mark.parametrize("name", FILES)
def test_every_script_named_exists_and_is_executable(name):
    scripts = set(re.findall(r"ci/\w+\.sh", (ROOT / name).read_text()))

    assert scripts
    assert [] == [s for s in scripts if not (ROOT / s).stat().st_mode & 0o100]


def test_generated_buildkite_steps_fit_the_schema(tmp_path):
    child = subprocess.run(
        [sys.executable, "-m", "harness", "list", "--buildkite", "--shards", "3"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    steps = json.loads(child.stdout)
    path = tmp_path / "steps.yml"
    path.write_text(yaml.safe_dump(steps))

    assert 0 == check("vendor.buildkite", path).returncode
    assert 3 == len([s for s in steps["steps"] if "key" in s])
