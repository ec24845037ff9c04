"""`harness properties`: generated models, settings, workloads and schedules; offload must hold."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from harness.core import ExitCode, UsageError, encode
from harness.core.codec import Json
from harness.faults import FAULTS
from harness.pipeline import Options, Session
from harness.triage.examples import Example, expected_verdict, from_text, to_text
from harness.triage.properties import PropertyReport, Prover, Trial, prove_properties

from .console import JsonOption, count, err, out, print_json
from .pages import write_pages

DEADLINE_S = 60.0
"""A generated run takes a tenth of a second."""
TELL_EVERY = 100


def properties(
    examples: Annotated[int, typer.Option("--examples", min=1, help="How many to generate.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the generator.")] = 0,
    fault: Annotated[
        str | None, typer.Option(metavar="NAME", help="Plant a fault in every target.")
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(metavar="JSON|FILE", help="Run one example again, and record it."),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", help="Folder that receives the session of --replay.")
    ] = Path("reports"),
    json_: JsonOption = False,
) -> int:
    """Generate comparisons and judge each; the first that does not hold is made small.

    Holds: effect, placement, memory, ordering, integrity and tokens all pass, or the case is
    VACUOUS where arithmetic says that what is asked cannot be. Exits with 1 when one does not.
    """
    if replay is not None:
        return _replay(_read(replay), output, fault, json_=json_)
    with tempfile.TemporaryDirectory(prefix="harness-properties-") as scratch:
        folder = Path(scratch)
        with Session(folder / "reports", options=Options(deadline_s=DEADLINE_S)) as session:
            report = prove_properties(
                Prover(session, folder / "checkpoints"),
                num_examples=examples,
                seed=seed,
                fault=fault,
                watch=None if json_ else _tell,
            )
            session.finish(controls=False)
    if json_:
        print_json(_to_json(report))
    else:
        _print_report(report)
    return ExitCode.PASS if report.failure is None else ExitCode.FAIL


def replay_command(example: Example) -> str:
    """The one command that runs an example again."""
    return shlex.join(["harness", "properties", "--replay", to_text(example)])


def _tell(num: int) -> None:
    if num % TELL_EVERY == 0:
        err.print(count(num, "example"))


def _print_report(report: PropertyReport) -> None:
    failure = report.failure
    parts = ", ".join(f"{name} {num:,}" for name, num in report.counts.items())
    out.print(
        f"{count(report.num_examples, 'example')}, seed {report.seed}, "
        f"{report.elapsed_s:.0f} s: {'all hold' if failure is None else 'the last does not hold'}",
        markup=False,
    )
    out.print(f"{parts}\n", markup=False)
    if failure is None:
        return
    out.print(f"made small with {count(report.num_shrinks, 'further run')}:", markup=False)
    _print_trial(failure)
    out.print(f"\nreplay  {replay_command(failure.example)}", markup=False)


def _print_trial(trial: Trial) -> None:
    example = trial.example
    tied = ", tied" if example.is_tied else ""
    lengths = "+".join(str(len(prompt)) for prompt in example.prompts)
    out.print(f"model     {example.architecture}, {count(example.num_layers, 'layer')}{tied}, "
              f"{example.dtype}", markup=False)  # fmt: skip
    out.print(f"setting   {example.setting.setting_id}", markup=False)
    out.print(f"schedule  {example.schedule}", markup=False)
    out.print(f"workload  prompts of {lengths} token ids, {example.max_tokens} new", markup=False)
    out.print(f"verdict   {trial.verdict.value}, expected {trial.expected.value}", markup=False)
    for judge, text in trial.words.items():
        out.print(f"  {judge:<10} {text}", markup=False)


def _to_json(report: PropertyReport) -> dict[str, Json]:
    record: dict[str, Json] = encode(report)
    command = None if report.failure is None else replay_command(report.failure.example)
    return {**record, "replay": command}


def _read(text: str) -> Example:
    """An example from JSON, or from a file of it."""
    if text.lstrip().startswith("{"):
        return from_text(text)
    try:
        return from_text(Path(text).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UsageError(f"--replay {text!r} must be JSON, or a file of it") from None


def _replay(example: Example, reports: Path, fault: str | None, *, json_: bool) -> int:
    if fault is not None:
        raise UsageError("--fault stands in the example itself: put it into its `faults`")
    for name in example.faults:
        FAULTS.check(name)
    manifest: dict[str, Json] = {
        "door": "cli",
        "argv": ["harness", *sys.argv[1:]],
        "title": "One generated example",
    }
    with (
        tempfile.TemporaryDirectory(prefix="harness-properties-") as scratch,
        Session(
            reports,
            manifest=manifest,
            options=Options(deadline_s=DEADLINE_S),
            command_for=lambda _case: replay_command(example),
        ) as session,
    ):
        result = session.compare(example.plan(Path(scratch)))
        outcome = session.finish(controls=False)
    trial = Trial(
        example=example,
        expected=expected_verdict(result.case),
        verdict=result.verdict,
        words={f.judge: f"{f.verdict.value}: {f.summary}" for f in result.findings},
    )
    pages = write_pages(session, outcome, manifest)
    if json_:
        record: dict[str, Json] = encode(trial)
        print_json({"session": str(session.folder), **record, "holds": trial.holds, **pages})
    else:
        _print_trial(trial)
        out.print(f"\nrecord  {session.folder}", markup=False)
        for kind, path in pages.items():
            out.print(f"{kind:<7} {path}", markup=False)
    return ExitCode.PASS if trial.holds else ExitCode.FAIL
