"""What cannot be run is refused before anything is launched: one line and the right exit code."""

import json

import pytest

RING = "--offload-group-size 2 --offload-num-in-group"

BAD = [
    pytest.param(["run", "--nonsense"], "No such option: --nonsense", id="flag-of-a-verb"),
    pytest.param(["nosuchverb"], "No such command 'nosuchverb'", id="verb"),
    pytest.param(["show"], "Missing argument", id="missing-argument"),
    pytest.param(["run", "-j", "-1"], "'-j' / '--jobs'", id="jobs"),
    pytest.param(["run", "--model", "tiny-lama"], "Did you mean 'tiny-llama'?", id="model"),
    pytest.param(["run", "--model", "./no/such/folder"], "./no/such/folder", id="model-folder"),
    pytest.param(
        ["run", "--fault", "ofloader-not-installed"],
        "Did you mean 'offloader-not-installed'?",
        id="fault",
    ),
    pytest.param(["list", "--fault", "nope"], "Unknown fault 'nope'", id="fault-of-list"),
    pytest.param(["run", "-k", "v1 and"], "-k 'v1 and': column 7: expected a name", id="k"),
    pytest.param(["list", "-k", "runer=v1"], "unknown axis 'runer'", id="k-axis"),
    pytest.param(["run", "-k", "zzz"], "no cell is left by -k 'zzz'", id="k-matches-nothing"),
    pytest.param(["run", "--cell", "v9"], "no cell is left by", id="cell"),
    pytest.param(["run", "--shard", "3/2"], "--shard '3/2' must be I/N", id="shard-beyond"),
    pytest.param(["run", "--shard", "0/2"], "--shard '0/2' must be I/N", id="shard-zero"),
    pytest.param(["run", "--shard", "²/3"], "--shard '²/3' must be I/N", id="shard-digits"),
    pytest.param(["run", "--matrix", "no.yaml"], "cannot read matrix file 'no.yaml'", id="matrix"),
    pytest.param(
        ["compare", "tiny-llama", "--target", "--cpu-ofload-gb 1"],
        "Did you mean --cpu-offload-gb?",
        id="engine-flag",
    ),
    pytest.param(
        ["compare", "tiny-llama", "--target", f"{RING} 3"],
        "offload_num_in_group=3 must be <= offload_group_size=2 (from",
        id="num-larger-than-group",
    ),
    pytest.param(
        ["compare", "tiny-llama", "--target", "--cpu-offload-gb -1"],
        "cpu_offload_gb=-1.0 must be >= 0 (GiB)",
        id="negative-budget",
    ),
    pytest.param(["compare", "no-such-model"], "Unknown model 'no-such-model'", id="no-model"),
    pytest.param(
        ["compare", "tiny-llama", "--target", "'open"], "No closing quotation", id="quote"
    ),
    pytest.param(
        ["compare", "tiny-llama", "--target", "VLLM_USE_V2_MODEL_RUNNER=yes"],
        "VLLM_USE_V2_MODEL_RUNNER='yes' must be '0' or '1'",
        id="switch",
    ),
    pytest.param(["compare", "tiny-llama", "--workload", "long"], "'long'", id="workload"),
    pytest.param(["compare", "tiny-llama", "--dtype", "int8"], "int8", id="dtype"),
    pytest.param(["report", "--merge", "nowhere"], "at least one shard", id="merge-nothing"),
]


def check_refused(answer, said, code=2):
    assert code == answer.code
    (line,) = answer.err.splitlines()
    assert line.startswith("harness: ")
    assert said in line


@pytest.mark.parametrize(("args", "said"), BAD)
def test_one_line_and_exit_code_2(cli, tmp_path, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)

    answer = cli(*args)

    check_refused(answer, said)
    assert "" == answer.out
    assert [] == list(tmp_path.iterdir()), "a refused request must leave nothing behind"


@pytest.mark.parametrize(("args", "said"), BAD)
def test_json_gives_the_same_as_an_object(cli, tmp_path, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)

    answer = cli(*args, "--json")

    check_refused(answer, said)
    found = json.loads(answer.out)
    assert {"error", "exit_code"} == set(found)
    assert (2, f"harness: {found['error']}\n") == (found["exit_code"], answer.err)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("name: x\nmodels: [tiny-llama\naxes: {", "3:5", "not YAML"),
        ("models: [a]\naxes:\n  ofload: []\n", "3:3", "Did you mean 'offload'?"),
        ("models: [a]\naxes:\n  runner: [v3]\n", "3:12", "v3"),
        (
            "models: [a]\naxes:\n  offload:\n    - {offload_group_size: 2, "
            "offload_num_in_group: 3}\n",
            "4:53",
            "must be <= offload_group_size=2",
        ),
        ("models: [a]\naxes: {runner: [v1]}\nname: a\nname: b\n", "4:1", "name"),
        ("", "1:1", ""),
    ],
    ids=["yaml", "key", "value", "range", "twice", "empty"],
)
def test_an_unreadable_matrix_is_told_by_file_line_and_column(cli, tmp_path, text, place, said):
    path = tmp_path / "m.yaml"
    path.write_text(text)

    answer = cli("run", "--matrix", path, "-o", tmp_path / "out")

    check_refused(answer, said)
    assert f"harness: {path}:{place}: " in answer.err
    assert not (tmp_path / "out").exists()


def test_a_matrix_that_is_no_text(cli, tmp_path):
    (tmp_path / "m.yaml").write_bytes(b"\x00\xff\xfe")

    check_refused(cli("run", "--matrix", tmp_path / "m.yaml"), "m.yaml")
    check_refused(cli("run", "--matrix", tmp_path), str(tmp_path))


def test_a_cell_that_no_session_has_names_the_nearest(cli, recorded):
    answer = cli("show", "tiny-llama/v1-uva-gb2-pin1-eager", "--run", recorded.session)

    check_refused(answer, "matches no cell")
    assert "tiny-llama/v1-uva-gb1-pin1-eager" in answer.err


@pytest.mark.parametrize("verb", [["report"], ["show", "x", "--run"]], ids=["report", "show"])
def test_a_reports_folder_without_a_session(cli, tmp_path, verb):
    (tmp_path / "reports").mkdir()

    check_refused(cli(*verb, tmp_path / "reports"), "holds no session")
    check_refused(cli(*verb, tmp_path / "elsewhere"), "elsewhere")


@pytest.mark.parametrize("verb", [["report"], ["show", "x", "--run"]], ids=["report", "show"])
def test_a_damaged_record_is_told_by_file_and_line(cli, tmp_path, verb):
    folder = tmp_path / "reports" / "20260101-000000-abcd"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"schema_version": 1}\n')
    (folder / "cases.jsonl").write_text("{}\nnot json\n")

    check_refused(cli(*verb, folder), "cases.jsonl")


def test_an_output_folder_that_cannot_be_made(cli, tmp_path, small_matrix):
    (tmp_path / "file").write_text("")

    check_refused(cli("run", "--matrix", small_matrix, "-o", tmp_path / "file"), "file")


def test_a_report_that_cannot_be_written(cli, recorded, tmp_path):
    check_refused(cli("report", recorded.session, "-o", tmp_path), str(tmp_path))
