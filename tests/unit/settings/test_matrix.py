import pytest

from harness.core import MatrixError, OffloadConfig, Setting
from harness.core.setting import DEFAULT_INSTRUMENTS
from harness.settings import load_matrix

USUAL = DEFAULT_INSTRUMENTS["reference"]

SMALL = """\
models: [tiny-llama]
axes:
  runner: [v1, v2]
  pin_memory: [true, false]
  offload:
    - {cpu_offload_gb: 1}
    - {offload_group_size: 2, offload_params: [mlp]}
"""


@pytest.fixture
def load(tmp_path):
    def load_text(text):
        path = tmp_path / "some.yaml"
        path.write_text(text, encoding="utf-8")
        return load_matrix(path)

    return load_text


@pytest.fixture
def error_of(load):
    """The error's text without the folder it stands in."""

    def error_text(text):
        with pytest.raises(MatrixError) as caught:
            load(text)
        message = str(caught.value)
        assert "\n" not in message
        return message[message.index("some.yaml") :]

    return error_text


def ids(matrix):
    return [setting.setting_id for setting in matrix.settings]


def test_product_turns_the_last_axis_fastest(load):
    expected = [
        f"{runner}-{offload}-pin{pin}-eager"
        for runner in ("v1", "v2")
        for pin in (1, 0)
        for offload in ("uva-gb1", "prefetch-g2n1s1-sel.mlp")
    ]

    assert expected == ids(load(SMALL))


def test_defaults_are_filled_in(load):
    matrix = load(SMALL)

    assert ("some", ("tiny-llama",), "default", None) == (
        matrix.name, matrix.models, *matrix.workloads, matrix.dtype
    )  # fmt: skip
    assert {"reference"} == {s.engine for s in matrix.settings}


def test_top_keys_reach_the_matrix_and_every_setting(load):
    matrix = load(
        "name: mine\nengine: vllm\nworkload: short\ndtype: bfloat16\n"
        "engine_args: {max_model_len: 128, tensor_parallel_size: 2}\nenv: {A: 'x', B: null}\n"
        + SMALL
    )

    assert ("mine", ("short",), "bfloat16") == (matrix.name, matrix.workloads, matrix.dtype)
    for setting in matrix.settings:
        assert "vllm" == setting.engine
        assert {"max_model_len": 128, "tensor_parallel_size": 2} == setting.engine_args
        assert {"A": "x", "B": None} == setting.env


def test_switch_inside_an_offload_entry_wins_and_doubles_are_dropped(load):
    matrix = load(
        "models: [m, m]\naxes:\n  uva: [true, false]\n  offload: [{cpu_offload_gb: 1, uva: false}]"
    )

    offload = OffloadConfig(cpu_offload_gb=1.0, uva=False)
    assert (Setting(offload=offload, instruments=USUAL),) == matrix.settings
    assert ("m",) == matrix.models


def test_cells_without_offload_are_one_baseline(load):
    matrix = load("models: [m]\naxes:\n  pin_memory: [true, false]\n  offload: [{}]")

    assert (Setting(instruments=USUAL),) == matrix.settings


def test_every_axis_reaches_its_field(load):
    matrix = load(
        "models: [m]\naxes: {runner: [null], multiprocessing: [true], enforce_eager: [false], "
        "uva: [false], pin_memory: [false], offload: [{cpu_offload_gb: 0.5}]}"
    )

    offload = OffloadConfig(cpu_offload_gb=0.5, pin_memory=False, uva=False)
    expected = Setting(
        offload=offload, multiprocessing=True, enforce_eager=False, instruments=USUAL
    )
    assert (expected,) == matrix.settings


@pytest.mark.parametrize(
    ("line", "expected", "ending"),
    [
        ("", USUAL, "-eager"),
        ("instruments: [integrity, ordering]\n", ("integrity", "ordering"), "-eager"),
        ("instruments: []\n", (), "-eager"),
        (
            "instruments: [poison, integrity-full]\n",
            ("poison", "integrity-full"),
            "-eager-with.integrity-full+poison",
        ),
    ],
)
def test_recorders_are_those_asked_for_else_the_engines_usual_ones(load, line, expected, ending):
    (setting,) = load(f"models: [m]\n{line}axes:\n  runner: [v2]\n").settings

    assert expected == setting.instruments
    assert f"v2-none{ending}" == setting.setting_id


def test_other_engines_have_no_recorders_unless_asked_for(load):
    (setting,) = load("models: [m]\nengine: vllm\naxes:\n  runner: [v2]\n").settings

    assert () == setting.instruments


def test_exclude_drops_the_cells_all_its_values_match(load):
    matrix = load(
        SMALL + "exclude:\n  - {runner: v1, pin_memory: false}\n"
        "  - {offload_backend: prefetch, pin_memory: false}\n"
        "  - {runner: v2, offload: {cpu_offload_gb: 1}}\n"
    )

    expected = [
        "v1-uva-gb1-pin1-eager",
        "v1-prefetch-g2n1s1-sel.mlp-pin1-eager",
        "v2-prefetch-g2n1s1-sel.mlp-pin1-eager",
    ]
    assert expected == ids(matrix)


def test_include_adds_cells_after_exclude_each_once(load):
    matrix = load(
        SMALL.replace("false]", "true]") + "exclude: [{runner: v1}]\n"
        "include:\n"
        "  - {runner: v1, offload: {cpu_offload_gb: 2}, multiprocessing: true}\n"
        "  - {runner: v2, offload: {cpu_offload_gb: 1}}\n"
        "  - {offload: {cpu_offload_gb: 1}, engine_args: {seed: 3}, env: {A: x}}\n"
    )

    extra = Setting(
        offload=OffloadConfig(cpu_offload_gb=1.0),
        engine_args={"seed": 3},
        env={"A": "x"},
        instruments=USUAL,
    )
    expected = [
        "v2-uva-gb1-pin1-eager",
        "v2-prefetch-g2n1s1-sel.mlp-pin1-eager",
        "v1-uva-gb2-pin1-eager-mp",
        extra.setting_id,
    ]
    assert expected == ids(matrix)
    assert extra == matrix.settings[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "some.yaml:1:1: the file is empty"),
        ("- a\n", "some.yaml:1:1: expected a mapping, found a list"),
        ("axes: {}\n", "some.yaml:1:1: key 'models' is missing"),
        ("models: [m]\n", "some.yaml:1:1: key 'axes' is missing"),
        ("models: m\naxes: {}\n", "some.yaml:1:9: expected a list, found 'm'"),
        ("models: []\naxes: {}\n", "some.yaml:1:9: expected a list with at least one entry"),
        ("models: [1]\naxes: {}\n", "some.yaml:1:10: expected text, found 1"),
        ("models: [m]\naxis: {}\n", "some.yaml:2:1: unknown key 'axis'. Known: name,"),
        ("models: [m]\naxes: {}\naxes: {}\n", "some.yaml:3:1: key 'axes' is given twice"),
        ("models: [m]\ndtype: int8\naxes: {}\n", "some.yaml:2:8: expected one of float32,"),
        ("models: [m]\naxes:\n  runner: [v3]\n", "some.yaml:3:12: expected one of v1, v2,"),
        ("models: [m]\naxes:\n  runner: [1]\n", "some.yaml:3:12: expected text, found 1"),
        ("models: [m]\naxes:\n  uva: [1]\n", "some.yaml:3:9: expected true or false, found 1"),
        ("models: [m]\naxes:\n  uva: true\n", "some.yaml:3:8: expected a list, found True"),
        ("models: [m]\naxes:\n  1: [v1]\n", "some.yaml:3:3: expected text, found 1"),
        ("models: [m]\naxes:\n  offload:\n    - {cpu_offload_bg: 1}\n",
         "some.yaml:4:8: unknown key 'cpu_offload_bg'."),
        ("models: [m]\naxes:\n  offload:\n    - {cpu_offload_gb: -1}\n",
         "some.yaml:4:24: cpu_offload_gb=-1.0 must be >= 0"),
        ("models: [m]\naxes:\n  offload:\n    - {cpu_offload_gb: .inf}\n",
         "some.yaml:4:24: expected a finite number, found inf"),
        ("models: [m]\naxes:\n  offload:\n    - {offload_group_size: 2.5}\n",
         "some.yaml:4:28: expected a whole number, found 2.5"),
        ("models: [m]\naxes:\n  offload:\n    - {offload_group_size: true}\n",
         "some.yaml:4:28: expected a whole number, found True"),
        ("models: [m]\naxes:\n  offload:\n  - offload_group_size: 2\n    offload_num_in_group: 3\n",
         "some.yaml:5:27: offload_num_in_group=3 must be <= offload_group_size=2"),
        ("models: [m]\naxes:\n  offload:\n    - {offload_backend: prefetch}\n",
         "some.yaml:4:25: offload_backend='prefetch' needs"),
        ("models: [m]\naxes:\n  offload:\n    - {offload_backend: none}\n",
         "some.yaml:4:25: expected one of auto, uva, prefetch"),
        ("models: [m]\naxes:\n  offload:\n    - {offload_params: mlp}\n",
         "some.yaml:4:24: expected a list, found 'mlp'"),
        ("models: [m]\naxes: {runner: [v1]}\nexclude: [{runner: v2}]\n",
         "some.yaml:3:11: this exclude entry matches no cell"),
        ("models: [m]\naxes: {runner: [v1]}\nexclude: [{}]\n",
         "some.yaml:3:11: an empty exclude entry"),
        ("models: [m]\naxes: {runner: [v1]}\nexclude: [{runner: v1}]\n",
         "some.yaml:2:7: no cell is left"),
        ("models: [m]\naxes: {runner: [v1]}\ninclude: [{model: x}]\n",
         "some.yaml:3:12: unknown key 'model'"),
        ("models: [m]\naxes: {}\nengine_args: {sede: 1}\n",
         "some.yaml:3:21: Unknown flag --sede for engine 'reference'. Did you mean --seed?"),
        ("models: [m]\naxes: {}\nengine_args: {seed: x}\n",
         "some.yaml:3:21: expected a whole number, found 'x'"),
        ("models: [m]\naxes: {}\nengine_args: {schedule: late}\n",
         "some.yaml:3:25: expected one of in_order,"),
        ("models: [m]\naxes: {}\nengine_args: {cpu_offload_gb: 1}\n",
         "some.yaml:3:31: engine argument 'cpu_offload_gb' belongs under axes"),
        ("models: [m]\naxes: {}\nengine_args: {gpu_memory_utilization: 0.1}\n",
         "some.yaml:3:39: the reference engine never sizes itself"),
        ("models: [m]\naxes: {}\nenv: {VLLM_USE_V2_MODEL_RUNNER: '1'}\n",
         "some.yaml:3:33: env VLLM_USE_V2_MODEL_RUNNER is decided by an axis"),
        ("models: [m]\naxes: {}\nenv: {A: 1}\n", "some.yaml:3:10: env A must be text or null"),
        ("models: [m]\naxes: {}\nenv: {A=B: x}\n", "some.yaml:3:12: env name 'A=B' must not hold"),
        ("engine: vllm\nmodels: [m]\naxes: {}\nengine_args: {x: 2020-01-01}\n",
         "some.yaml:4:18: expected plain JSON data, found datetime.date(2020, 1, 1)"),
        ("engine: vllm\nmodels: [m]\naxes: {}\nengine_args: {x: .nan}\n",
         "some.yaml:4:18: expected plain JSON data, found nan"),
        ("engine: vllm\nmodels: [m]\naxes: {}\nengine_args: {x: &a [*a]}\n",
         "some.yaml:4:18: not YAML: found unconstructable recursive node"),
        ("axes: " + "[" * 3000, "some.yaml: not YAML: nested too deeply"),
        ("models: [m\naxes: {}\n", "some.yaml:2:5: not YAML: "),
        ("models: [m]\n\taxes: {}\n", "some.yaml:2:1: not YAML: "),
        ("models: *m\n", "some.yaml:1:9: not YAML: found undefined alias 'm'"),
        ("a: 1\n---\nb: 2\n", "some.yaml:2:1: not YAML: "),
        ("models: [m]\naxes: \x07\n", "some.yaml:2:7: special characters are not allowed"),
        ("models: [!!python/name:os.system m]\naxes: {}\n", "some.yaml:1:10: not YAML: "),
    ],
)  # fmt: skip
def test_wrong_file_is_refused_with_line_and_column(error_of, text, message):
    assert error_of(text).startswith(message)


def test_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(MatrixError) as caught:
        load_matrix(tmp_path / "none.yaml")

    assert f"cannot read matrix file '{tmp_path}/none.yaml': no such file or directory" == str(
        caught.value
    )


def test_folder_and_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\n")

    with pytest.raises(MatrixError, match="is a directory"):
        load_matrix(tmp_path)
    with pytest.raises(MatrixError, match=r"not UTF-8 text .* at byte 3"):
        load_matrix(tmp_path / "bytes.yaml")


def test_default_matrix_covers_what_it_must():
    matrix = load_matrix(None)

    targets = [s for s in matrix.settings if not s.is_baseline]
    offloads = [s.offload for s in targets]
    assert 44 <= len(targets) == len({s.setting_id for s in targets})
    assert ("default", ("tiny-llama",)) == (matrix.name, matrix.models)
    assert {"v1", "v2"} == {s.runner for s in targets}
    assert {True, False} == {o.pin_memory for o in offloads}
    assert {"v1", "v2"} == {s.runner for s in targets if s.multiprocessing}
    graphs = [s for s in targets if not s.enforce_eager]
    assert {("v1", "uva"), ("v2", "uva"), ("v1", "prefetch"), ("v2", "prefetch")} == {
        (s.runner, s.offload.resolved_backend) for s in graphs
    }
    assert any(not s.offload.uva for s in graphs)
    assert 10 <= len({o.offload_id.removesuffix("-pin0") for o in offloads if not o.pin_memory})
    assert 2 <= len({o.cpu_offload_gb for o in offloads if 0 < o.cpu_offload_gb < 0.0055})
    assert any(o.cpu_offload_params for o in offloads)
    assert any(o.offload_params for o in offloads)
    assert any(not o.uva for o in offloads)
    rings = [8 // o.offload_group_size * o.offload_num_in_group % o.offload_prefetch_step
             for o in offloads if o.resolved_backend == "prefetch"]  # fmt: skip
    assert any(rings)
    assert not all(rings)


def test_a_matrix_may_name_several_workloads(tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text(
        "models: [tiny-llama]\nworkload: [generates, reload-same]\n"
        "axes: {offload: [{cpu_offload_gb: 1}]}\n"
    )
    assert load_matrix(file).workloads == ("generates", "reload-same")


def test_engine_arguments_are_an_axis_laid_over_the_matrixs_own(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text(
        "models: [m]\nengine_args: {max_num_seqs: 4}\naxes:\n  runner: [v1]\n"
        "  engine_args: [{}, {pipeline_parallel_size: 2}]\n"
    )

    found = [dict(setting.engine_args) for setting in load_matrix(file).settings]

    assert [{"max_num_seqs": 4}, {"max_num_seqs": 4, "pipeline_parallel_size": 2}] == found


def test_an_unknown_engine_argument_on_the_axis_has_its_place(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text("models: [m]\naxes:\n  runner: [v1]\n  engine_args: [{pipeline_size: 2}]\n")

    with pytest.raises(MatrixError, match=r"some\.yaml:4:33: Unknown flag --pipeline-size"):
        load_matrix(file)
