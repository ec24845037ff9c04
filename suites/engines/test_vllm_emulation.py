"""vLLM's own offloaders on CPU tensors: every clean cell right, and called an emulation."""

from pathlib import Path

import pytest

from harness.settings import load_matrix

MATRICES = Path(__file__).parent / "matrices"
NAME = "vllm-cpu-emulation"
JUDGES = ("effect", "placement", "memory", "integrity", "tokens")


@pytest.fixture(scope="module")
def finished(interpreter, run_matrix, tmp_path_factory):
    interpreter("vllm")
    junit = tmp_path_factory.mktemp("junit") / "junit.xml"
    return run_matrix(MATRICES / "vllm_emulation.yaml", "--junit", junit), junit


def test_every_cell_passes_by_every_judge(finished, named):
    done, _ = finished
    results = named(done.results("case"))

    assert 0 == done.code, done.answer["outcome"]["sentence"]
    assert {"ok"} == set(done.answer["outcome"]["controls"].values())
    assert len(load_matrix(MATRICES / "vllm_emulation.yaml").settings) == len(results) == 24
    for name, result in results.items():
        said = {f.judge: f.verdict.value for f in result.findings}
        assert dict.fromkeys(JUDGES, "PASS") == said, name


def test_each_setting_has_its_own_offloader_placement_and_slots_on_both_runners(finished, named):
    done, _ = finished
    runs = done.record.runs
    seen = {}
    for name, result in named(done.results("case")).items():
        probe, wanted = runs[result.target_run_id].probe, result.case.expected
        pool = probe.buffer_pool
        slots = (pool.slot_capacity, dict(pool.slots), dict(pool.refill_after)) if pool else None
        names = tuple(sorted(p.name for p in probe.params if p.is_offloaded))
        offloader = probe.offloader_class.rpartition(".")[2]
        runner, _, offload = name.partition("-")
        seen.setdefault(offload, {})[runner] = (offloader, names, slots)
        assert tuple(sorted(wanted.offloaded_params)) == names, name
        assert probe.runner == runner == result.case.target.runner
    for offload, by_runner in seen.items():
        assert by_runner["v1"] == by_runner["v2"], offload
        kind = "UVAOffloader" if offload.startswith("uva") else "PrefetchOffloader"
        assert kind == by_runner["v1"][0]


def test_every_output_says_that_it_is_an_emulation(finished):
    done, junit = finished
    assert all(NAME in c["cell"] for c in done.answer["cases"])
    assert {NAME} == {c["axes"]["engine"] for c in done.answer["cases"]}
    assert [NAME] == done.record.manifest["engines"]
    text = junit.read_text()
    assert text.count("<testcase") <= text.count(NAME)
    assert NAME in (done.folder / "report.html").read_text()
    assert {NAME} == set(done.record.frame()["engine"])


def test_what_an_emulation_cannot_show_is_said(finished):
    done, _ = finished
    for result in done.results("case"):
        probe = done.record.runs[result.target_run_id].probe
        assert any("no race can show" in text for text in probe.not_observed)
