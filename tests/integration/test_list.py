"""`harness list`: what would run, without running it."""

import json


def test_cells_one_a_line(cli, small_matrix, cells):
    answer = cli("list", "--matrix", small_matrix)

    assert (0, "") == (answer.code, answer.err)
    lines = answer.out.splitlines()
    assert ["tiny-llama/runner-v2-none-eager", *cells] == lines[:-1]
    assert "5 cells, 9 runs" == lines[-1]


def test_pairs_of_releases_are_listed_as_cells(cli, tmp_path):
    matrix = tmp_path / "m.yaml"
    matrix.write_text(
        "models: [tiny-llama]\nworkload: short\n"
        "engines: [{name: vllm, release: a}, {name: vllm, release: b}]\n"
        "axes: {offload: [{cpu_offload_gb: 1}], runner: [v2]}\n"
    )
    answer = cli("list", "--matrix", matrix)

    assert (0, "") == (answer.code, answer.err)
    assert [
        "tiny-llama/v2-uva-gb1-pin1-eager@vllm-a",
        "tiny-llama/v2-uva-gb1-pin1-eager@vllm-b",
        "tiny-llama/release-v2-none-eager@vllm-b",
    ] == answer.out.splitlines()[:-1]


def test_default_matrix_is_what_the_project_promises(cli):
    listed = [c for c in cli("list", "--json").json if c["role"] == "case"]

    assert 40 <= len(listed)
    assert {"v1", "v2"} == {c["axes"]["runner"] for c in listed}
    assert 8 <= len({c["axes"]["offload"] for c in listed})
    assert len(listed) == len({c["cell"] for c in listed})


def test_selection_and_fault_show_in_the_ids(cli, small_matrix, cells):
    answer = cli(
        "list",
        "--matrix",
        small_matrix,
        "-k",
        "v2 and prefetch",
        "--fault",
        "offloader-not-installed",
    )

    assert [f"{cells[3]}!offloader-not-installed", "1 cell, 4 runs"] == answer.out.splitlines()


def test_models_stand_ins_included(cli):
    names = [m["name"] for m in cli("list", "--models", "--json").json]

    assert {"tiny-llama", "seeded-qwen3"} <= set(names)
    assert "architecture" in cli("list", "--models").out


def test_github_matrix_is_one_line_and_forwards_the_selection(cli, small_matrix):
    answer = cli(
        "list", "--matrix", small_matrix, "-k", "uva or v2", "--github-matrix", "--shards", 2
    )

    (line,) = answer.out.splitlines()
    jobs = json.loads(line)["include"]
    assert ["1/2", "2/2"] == [job["shard"] for job in jobs]
    assert all(f"--matrix {small_matrix} -k 'uva or v2'" in job["command"] for job in jobs)


def test_the_two_services_exclude_each_other(cli):
    answer = cli("list", "--buildkite", "--github-matrix")

    assert 2 == answer.code
    assert 1 == len(answer.err.splitlines())


def test_known_bad_cells_are_listed_and_marked(cli, tmp_path):
    matrix = tmp_path / "m.yaml"
    matrix.write_text(
        "models: [tiny-llama]\nworkload: short\n"
        "axes: {runner: [v1], offload: [{offload_group_size: 2}]}\n"
        "known_bad:\n"
        "  - {runner: v1, offload: {offload_group_size: 2}, faults: [no-wait-for-copy],"
        " must_fail: [ordering]}\n"
    )

    lines = cli("list", "--matrix", matrix).out.splitlines()
    rows = cli("list", "--matrix", matrix, "--json").json

    cell, bad = "v1-prefetch-g2n1s1-pin1-eager", "control-v1-prefetch-g2n1s1-pin1-eager"
    assert lines == [
        f"tiny-llama/{cell}",
        f"tiny-llama/{bad}!no-wait-for-copy  (known bad: must FAIL by ordering)",
        "1 cell and 1 known-bad cell, 5 runs",
    ]
    assert [None, ["ordering"]] == [row.get("known_bad") for row in rows]
    assert ["case", "control"] == [row["role"] for row in rows]
