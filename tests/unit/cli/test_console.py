"""Options that every verb shares: shards, selections, the command of a cell."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.compare import split_side
from harness.cli.console import count, parse_shard, rerun, select_cells, show_command
from harness.core import UsageError
from tests.builders import UVA, build_case


@pytest.mark.parametrize(("text", "shard"), [("1/1", (1, 1)), ("2/5", (2, 5)), ("05/5", (5, 5))])
def test_shards_that_exist(text, shard):
    assert shard == parse_shard(text)


@pytest.mark.parametrize(
    "text", ["", "1", "/", "0/1", "2/1", "-1/2", "1/2/3", "a/b", "²/3", " 1/2"]
)
def test_shards_that_do_not(text):
    with pytest.raises(UsageError, match="must be I/N"):
        parse_shard(text)


def test_no_selection_is_no_predicate():
    assert select_cells("", ()) is None


def test_cells_and_expression_must_both_match():
    keep = select_cells("v1", ("m/v1-uva", "m/v2-uva"))

    kept = [a for a in ("m/v1-uva", "m/v2-uva", "m/v1-none") if keep(a, {})]
    assert ["m/v1-uva"] == kept


def test_a_cell_is_found_with_its_faults_or_without():
    assert select_cells("", ("m/v1-uva",))("m/v1-uva!pin-flag-ignored", {})
    assert select_cells("", ("m/v1-uva!x",))("m/v1-uva!x", {})
    assert not select_cells("", ("m/v1-uva!x",))("m/v1-uva", {})


def with_faults(case, *faults):
    return replace(case, target=replace(case.target, faults=faults))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (build_case(UVA), ["--model", "toy", "--cell", "toy/v2-uva-gb1-pin1-eager"]),
        (
            with_faults(build_case(UVA), "pin-flag-ignored"),
            [
                "--model",
                "toy",
                "--fault",
                "pin-flag-ignored",
                "--cell",
                "toy/v2-uva-gb1-pin1-eager",
            ],
        ),
        (
            with_faults(build_case(UVA, role="control"), "host-copy-damaged"),
            ["--model", "toy", "--cell", "toy/v2-uva-gb1-pin1-eager"],
        ),
    ],
    ids=["case", "fault", "control"],
)
def test_the_command_of_a_cell(case, words):
    assert ["harness", "run", *words] == shlex.split(rerun(case, None))
    named = shlex.split(rerun(case, Path("my matrix.yaml")))
    assert ["harness", "run", "--matrix", "my matrix.yaml", *words] == named


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ["--engine", "reference"]),
        (
            {"engine": "vllm", "release": "0.28", "python": "/a b/python"},
            ["--engine", "vllm", "--python", "0.28=/a b/python"],
        ),
        ({"engine": "vllm", "python": "/p"}, ["--engine", "vllm", "--python", "/p"]),
    ],
)
def test_the_command_names_an_engine_that_is_not_the_matrixs_own(fields, words):
    case = build_case(UVA)
    case = replace(case, target=replace(case.target, **fields))

    assert words == shlex.split(rerun(case, None, names_engine=True))[2 : 2 + len(words)]
    assert "--engine" not in rerun(case, None)


def test_the_command_names_what_a_stand_in_stands_for():
    case = build_case(UVA)
    model = replace(case.workload.model, stand_in_for="org/model")
    case = replace(case, workload=replace(case.workload, model=model))

    assert ["--model", "org/model"] == shlex.split(rerun(case, None))[2:4]


def test_a_side_is_variables_then_arguments():
    args, env = split_side("A=1 B='x y' --cpu-offload-gb 1 --foo=bar")

    assert (["--cpu-offload-gb", "1", "--foo=bar"], {"A": "1", "B": "x y"}) == (args, env)
    assert ([], {}) == split_side("")


def test_counts_read_well():
    assert ["0 cells", "1 cell", "1,200 runs"] == [
        count(0, "cell"), count(1, "cell"), count(1200, "run"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("session", "more"),
    [
        ("reports/s1", []),
        ("elsewhere/s1", ["--run", "elsewhere/s1"]),
        ("/a b/s1", ["--run", "/a b/s1"]),
    ],
)
def test_the_command_that_shows_a_cell_names_a_folder_of_its_own(session, more):
    words = shlex.split(show_command(build_case(UVA), Path(session)))

    assert words == ["harness", "show", build_case(UVA).anchor, *more]
