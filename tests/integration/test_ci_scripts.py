"""The scripts that the CI files call, and the commands that `harness list` makes, really run."""

import json
import os
import shlex
import shutil
import subprocess

import pytest

import harness

from .commandline import DEADLINE_S, ROOT, run_harness, write_executable
from .conftest import SMALL


@pytest.fixture
def checkout(tmp_path):
    """A folder with the ci scripts alone; `checkout(script, *args)` runs one with our harness."""
    shutil.copytree(ROOT / "ci", tmp_path / "ci")
    program = write_executable(tmp_path / "harness")
    (tmp_path / "small.yaml").write_text(SMALL)

    def run(*words, **env):
        child = subprocess.run(
            list(map(str, words)),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=tmp_path,
            env={
                **os.environ,
                "HARNESS": str(program),
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                **env,
            },
        )
        assert 0 == child.returncode, child.stdout + child.stderr
        return child.stdout

    run.path = tmp_path
    return run


def test_plan_is_one_line_for_githubs_job_output(checkout):
    (line,) = checkout("ci/plan.sh", SHARDS="3").splitlines()

    name, _, text = line.partition("=")
    jobs = json.loads(text)["include"]
    assert "matrix" == name
    assert ["1/3", "2/3", "3/3"] == [job["shard"] for job in jobs]
    assert 3 == len({job["key"] for job in jobs})


def test_plan_for_buildkite_sets_each_step_up(checkout):
    steps = json.loads(checkout("ci/plan_buildkite.sh", SHARDS="2"))["steps"]

    mine = [s for s in steps if "key" in s]
    assert 2 == len(mine)
    assert all(s["command"].startswith("ci/setup.sh && export PATH=") for s in mine)
    assert all("$$PWD" in s["command"] for s in mine)


def test_shards_run_and_merge_into_one_report(checkout):
    for shard in (1, 2):
        checkout("ci/shard.sh", f"{shard}/2", f"shards/offload-{shard}", "--matrix", "small.yaml")

    text = checkout("ci/merge.sh", "reports/shards", GITHUB_STEP_SUMMARY="step.md")

    folder = checkout.path / "reports" / "shards"
    assert all((folder / f"offload-{n}" / "junit.xml").is_file() for n in (1, 2))
    merged = harness.load_run(folder / "merged")
    cells = [r.case.anchor for r in merged.results if r.case.role == "case"]
    assert 4 == len(cells) == len(set(cells))
    assert merged.outcome.passed
    assert "proven" in text
    assert (folder / "merged" / "report.html").is_file()
    assert (folder / "merged" / "junit.xml").is_file()
    assert "tiny-llama" in (checkout.path / "step.md").read_text()


def test_the_jobs_commands_run_every_chosen_cell_once(checkout):
    chosen = ("--matrix", "small.yaml", "-k", "v1 and (uva or prefetch)")
    text = checkout("harness", "list", "--github-matrix", "--shards", "2", *chosen)

    for job in json.loads(text)["include"]:
        checkout(*shlex.split(job["command"]))

    cells = [
        r.case.anchor
        for session in map(harness.load_run, (checkout.path / "reports").iterdir())
        for r in session.results
        if r.case.role == "case"
    ]
    assert [
        "tiny-llama/v1-prefetch-g2n1s3-pin1-eager",
        "tiny-llama/v1-uva-gb1-pin1-eager",
    ] == sorted(cells)


def test_the_command_of_a_recorded_cell_runs_that_cell_again(recorded, tmp_path, cells):
    session = harness.load_run(recorded.session)
    (result,) = [r for r in session.results if r.case.anchor == cells[3]]
    words = shlex.split(result.command)

    answer = run_harness(*words[1:], "-o", tmp_path, "--json")

    assert "harness" == words[0]
    assert 0 == answer.code, answer.err
    again = [c["cell"] for c in answer.json["cases"] if c["role"] == "case"]
    assert [cells[3]] == again
