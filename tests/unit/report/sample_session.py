"""Scripted sessions for the report's tests: cases, findings and the runs they speak of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from harness.core import (
    EXIT_ORDER,
    Case,
    CaseResult,
    Divergence,
    Finding,
    Outcome,
    Run,
    RunStatus,
    Setting,
    Verdict,
    fold,
)

from .sample_runs import (
    CLASSES,
    make_expected,
    make_model,
    make_outputs,
    make_run,
    make_workload,
    prefetch,
    uva,
)


@dataclass(frozen=True)
class Sample:
    """What every renderer takes."""

    results: tuple[CaseResult, ...]
    runs: dict[str, Run]
    outcome: Outcome
    manifest: dict[str, object]

    @property
    def args(self):
        return self.results, self.runs, self.outcome, self.manifest


OFFLOADS = (
    uva(1),
    uva(1, pin=False),
    uva(0.004),
    uva(1, "down_proj"),
    uva(1, view=False),
    prefetch(2, 1, 1),
    prefetch(2, 1, 1, pin=False),
    prefetch(4, 2, 2),
    prefetch(2, 1, 3),
    prefetch(8, 8, 1),
    prefetch(2, 1, 1, "gate_up_proj", "down_proj"),
)


def proofs(expected):
    """Four passing findings."""
    saved = expected.offloaded_bytes - expected.pool_bytes
    count = f"{expected.offloaded_bytes:,} bytes"
    texts = {
        "effect": f"Offload took effect: {CLASSES[expected.backend]} is live with "
        f"{len(expected.offloaded_layers)} layers, {count}; the baseline runs NoopOffloader.",
        "placement": f"Weights stand where they should: {len(expected.offloaded_params)} "
        f"parameters of {len(expected.offloaded_layers)} layers, as computed.",
        "memory": f"The device holds {saved:,} bytes less.",
        "tokens": "8 of 8 answers equal, 512 tokens compared, the log-probabilities too.",
    }
    return {k: Finding(judge=k, verdict=Verdict.PASS, summary=v) for k, v in texts.items()}


def effect_rows(left, right):
    def facts(run):
        off = [p for p in run.probe.params if p.is_offloaded]
        return {
            "runner": run.probe.runner,
            "offloader": run.probe.offloader_class,
            "offloaded layers": len({p.layer_idx for p in off}),
            "offloaded bytes": run.probe.offloaded_bytes,
            "pinned host copies": sum(p.is_pinned for p in off),
        }

    return facts(left), facts(right)


def make_case(workload, setting, role="case"):
    model = workload.model
    expected = make_expected(model, setting)
    base = setting.baseline()
    return Case(
        case_id=f"{model.name}/{workload.name}/{base.setting_id}..{role}-{setting.setting_id}",
        baseline=base,
        target=setting,
        workload=workload,
        role=role,
        expected=expected,
        expected_baseline=make_expected(model, base),
        axes={"runner": setting.runner or "auto", "backend": expected.backend},
    )


def make_result(case, findings, left_id, right_id):
    return CaseResult(
        case=case,
        verdict=fold(findings),
        findings=tuple(findings),
        baseline_run_id=left_id,
        target_run_id=right_id,
        session_id="20261129-181502-a1b2",
        started_at="2026-11-29T18:15:02+00:00",
        duration_s=1.34,
        command=f"harness run --cell '{case.anchor}'",
    )


def _fail(found, token_idx=3, num=3):
    divergence = Divergence(
        request_idx=2, token_idx=token_idx, expected=1, actual=9, margin=1.8, num_differing=num
    )
    found["tokens"] = Finding(
        judge="tokens",
        verdict=Verdict.FAIL,
        summary=f"{num} of 8 answers differ: prompt 2 at token {token_idx}, by 1.8 nats",
        divergence=divergence,
        evidence={"cause": "output differs from the baseline's"},
    )
    return list(found.values())


def _vacuous(found, runner):
    cause = f"offload never took effect under runner {runner} (NoopOffloader is live)"
    texts = {
        "effect": f"{cause}: 0 of 4 layers and 0 of 4,194,304 bytes offloaded on the target",
        "placement": "no parameter is offloaded: nothing to place",
        "memory": "nothing is offloaded: no saving to measure (0 bytes less)",
    }
    for name, text in texts.items():
        found[name] = Finding(
            judge=name, verdict=Verdict.VACUOUS, summary=text, evidence={"cause": cause}
        )
    return list(found.values())


def _single(judge, verdict, summary):
    return [Finding(judge=judge, verdict=verdict, summary=summary)]


def _cell(workload, setting, kind, runs, role="case"):
    """One result of the given kind, and its target's run."""
    case = make_case(workload, setting, role)
    left_id = f"{workload.model.name}-{case.baseline.setting_id}"
    right_id = f"{workload.model.name}-{role}-{setting.setting_id}"
    left = runs.setdefault(left_id, make_run(left_id, workload, case.baseline))
    found = proofs(case.expected)
    right = make_run(right_id, workload, setting)
    findings = list(found.values())
    if kind == "FAIL":
        right = replace(right, outputs=make_outputs(workload, wrong=(2, 5, 6)))
        findings = _fail(found)
    elif kind == "LATE":
        right = replace(right, outputs=make_outputs(workload, wrong=(2,), first=41))
        findings = _fail(found, token_idx=41, num=1)
    elif kind == "VACUOUS":
        right = make_run(right_id, workload, setting, installed=False)
        findings = _vacuous(found, setting.runner)
    elif kind == "ERROR":
        log = tuple(f"worker: step {n} ok" for n in range(8))
        log += ("Traceback (most recent call last):", "RuntimeError: copy stream is gone")
        right = replace(
            right, status=RunStatus.CRASH, outputs=(), probe=None, error=log[-1], log_tail=log
        )
        findings = _single("run", Verdict.ERROR, f"the target crashed: {log[-1]}")
    elif kind == "UNSUPPORTED":
        reason = "UVA needs pinned memory: remove pin_memory=False or set uva=False"
        right = replace(right, status=RunStatus.UNSUPPORTED, outputs=(), probe=None, error=reason)
        findings = _single(
            "run", Verdict.UNSUPPORTED, f"the engine refused the target's setting: {reason}"
        )
    if right.probe is not None:
        a, b = effect_rows(left, right)
        asked = effect_rows(left, make_run("x", workload, setting))[1]
        rows = [
            {"name": n, "asked": asked[n], "baseline": a[n], "target": b[n], "ok": asked[n] == b[n]}
            for n in b
        ]
        findings = [
            replace(f, evidence={**f.evidence, "rows": rows}) if f.judge == "effect" else f
            for f in findings
        ]
    runs[right_id] = right
    return make_result(case, findings, left_id, right_id)


def conclude_sample(results):
    counts = Counter(r.verdict.value for r in results if r.counts)
    bad = next((v for v in EXIT_ORDER if counts[v.value]), None)
    code = {None: 0, Verdict.FAIL: 1, Verdict.ERROR: 3, Verdict.VACUOUS: 4}[bad]
    total = sum(counts.values())
    sentence = (
        f"All {total} cells are proven: offload took effect, in the right place, same output."
    )
    if bad is not None:
        sentence = f"{counts[bad.value]} of {total} cells {bad.value}: " + next(
            r.lead.summary for r in results if r.counts and r.verdict is bad
        )
    controls = {r.case.case_id: "ok" if r.behaved else "bad" for r in results if not r.counts}
    return Outcome(counts=counts, controls=controls, exit_code=code, sentence=sentence)


MIXED = {
    ("v2", prefetch(2, 1, 3).offload_id): "FAIL",
    ("v2", prefetch(4, 2, 2).offload_id): "LATE",
    ("v2", uva(1).offload_id): "VACUOUS",
    ("v2", uva(1, "down_proj").offload_id): "VACUOUS",
    ("v2", prefetch(2, 1, 1).offload_id): "VACUOUS",
    ("v1", uva(1, pin=False).offload_id): "UNSUPPORTED",
    ("v2", uva(1, pin=False).offload_id): "UNSUPPORTED",
    ("v1", prefetch(8, 8, 1).offload_id): "ERROR",
}


def build_sample(*, mixed=True, models=("tiny-llama", "random-llama-16"), offloads=OFFLOADS):
    """A session over models x runners x offloads, with a null case and a planted fault."""
    runs, results = {}, []
    for name in models:
        workload = make_workload(make_model(name, 16 if name.endswith("16") else 8))
        for runner in ("v1", "v2"):
            null = Setting(runner=runner)
            results.append(_cell(workload, null, "PASS", runs, role="null"))
            for offload in offloads:
                kind = MIXED.get((runner, offload.offload_id), "PASS") if mixed else "PASS"
                results.append(_cell(workload, Setting(runner=runner, offload=offload), kind, runs))
        faulty = Setting(runner="v2", offload=prefetch(2, 1, 1), faults=("missing-copy-wait",))
        results.append(_cell(workload, faulty, "FAIL", runs, role="control"))
    manifest = {"session_id": results[0].session_id, "started_at": results[0].started_at}
    return Sample(tuple(results), runs, conclude_sample(results), manifest)


def find(sample, verdict, role="case"):
    return next(r for r in sample.results if r.verdict.value == verdict and r.case.role == role)


def find_early(sample):
    """The FAIL whose three answers differ from token 3 on."""
    return next(
        r for r in sample.results if r.verdict is Verdict.FAIL and "3 of 8" in r.lead.summary
    )


RELEASES = ("0.26.0", "0.28.0", "0.32.0")
CHANGED = {
    "0.26.0": {"max_num_seqs": 256, "async_scheduling": None, "attention": {"backend": "FA2"}},
    "0.28.0": {"max_num_seqs": 256, "async_scheduling": False, "attention": {"backend": "FA3"}},
    "0.32.0": {"max_num_seqs": 1024, "attention": {"backend": "FA3"}, "offload_pin": True},
}
"""Effective configuration of each release that the report must tell apart."""


def release_kind(release, runner, offload):
    """V2 ignores offload in the first two releases; a slot bug is in the second."""
    backend = offload.resolved_backend
    if backend == "prefetch" and offload.offload_prefetch_step == 3 and release == RELEASES[1]:
        return "FAIL"
    if not offload.pin_memory and release == RELEASES[0]:
        return "UNSUPPORTED"
    return "VACUOUS" if runner == "v2" and release in RELEASES[:2] else "PASS"


def build_releases(*, engine="vllm", releases=RELEASES, modes=(True,), not_observed=()):
    """A session of one engine in several releases, V1 and V2."""
    offloads = (uva(1), prefetch(2, 1, 1), prefetch(2, 1, 1, pin=False), prefetch(2, 1, 3))
    workload = make_workload(make_model("random-llama-16", 16))
    runs, results = {}, []
    for release in releases:
        python = f"/opt/{release}/bin/python" if release else None
        place = {"engine": engine, "release": release, "python": python}
        for runner in ("v1", "v2"):
            for eager in modes:
                base = Setting(runner=runner, enforce_eager=eager, **place)
                results.append(_cell(workload, base, "PASS", runs, role="null"))
                for offload in offloads:
                    kind = release_kind(release, runner, offload)
                    target = replace(base, offload=offload)
                    results.append(_cell(workload, target, kind, runs))
        faulty = Setting(runner="v1", offload=uva(1), faults=("host-copy-damaged",), **place)
        results.append(_cell(workload, faulty, "FAIL", runs, role="control"))
        if release != releases[0]:
            result = _cell(workload, Setting(runner="v1", **place), "PASS", runs, role="release")
            before = releases[releases.index(release) - 1]
            old = replace(result.case.target, release=before, python=f"/opt/{before}/bin/python")
            results.append(replace(result, case=replace(result.case, baseline=old)))
    runs = {name: _of_release(run, not_observed) for name, run in runs.items()}
    manifest = {"session_id": results[0].session_id, "started_at": results[0].started_at}
    return Sample(tuple(results), runs, conclude_sample(results), manifest)


def _of_release(run, not_observed):
    release = run.setting.release
    host = replace(run.host, python="3.12.4", torch="2.11.0", device="cuda")
    if run.probe is None:
        return replace(run, host=host)
    config = {**run.probe.effective_config, **CHANGED.get(release, {})}
    probe = replace(
        run.probe,
        engine_version=release,
        effective_config=config,
        env={"VLLM_USE_V2_MODEL_RUNNER": run.setting.runner == "v2"},
        not_observed=tuple(not_observed),
    )
    return replace(run, host=host, probe=probe)
