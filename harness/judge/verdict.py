"""A session's results -> its outcome: counts, controls, exit code and one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import shorten

from harness.core import EXIT_ORDER, CaseResult, ExitCode, Finding, Outcome, Verdict

from .proven import all_saved, is_absent, weights_words
from .runners import missing_runner

_CODES = {
    Verdict.FAIL: ExitCode.FAIL,
    Verdict.ERROR: ExitCode.ERROR,
    Verdict.VACUOUS: ExitCode.VACUOUS,
}
_NOT_RUN = (Verdict.ERROR, Verdict.UNSUPPORTED)
MAX_STATUS = 160
"""Letters of a control's own words within the session's sentence; the page has all of them."""
_ONE = {Verdict.FAIL: "FAILS", Verdict.ERROR: "ended in ERROR", Verdict.VACUOUS: "is VACUOUS"}
_MANY = {Verdict.FAIL: "FAIL", Verdict.ERROR: "ended in ERROR", Verdict.VACUOUS: "are VACUOUS"}


def conclude(results: Sequence[CaseResult], *, controls: bool = True) -> Outcome:
    """Fold a session into its outcome.

    The exit code is the worst of FAIL 1, ERROR 3, VACUOUS 4 that any counted case has; 4 when
    nothing was compared or nothing that was asked for was proven; 5 when all were UNSUPPORTED;
    else 0, and 3 in its place when a control misbehaved or did not run, or there is none: no null
    case at all, or no planted fault although a case asks for offload. 3 also in place of 0 and 4
    when both runners are asked for and one of them was not proven to have run.

    Args:
        results: every case of the session, controls included.
        controls: False when the caller switched controls off: then none is missed.

    A waived cell is counted and named, and does not decide the code.
    """
    counted = [r for r in results if r.counts]
    counts = Counter(r.verdict for r in counted)
    waived = [r for r in counted if r.is_waived]
    said: dict[str, str] = {}
    for result in results:
        if not result.counts and said.get(result.case.case_id, "ok") == "ok":
            said[result.case.case_id] = _control_status(result)
    code, sentence = _main([r for r in counted if not r.is_waived], has_waived=bool(waived))
    sentence = " ".join(filter(None, (sentence, _waived(waived))))
    if counted and (lacking := missing_runner(results)):
        sentence = f"{lacking} Otherwise: {sentence}"
        code = ExitCode.ERROR if code in (ExitCode.PASS, ExitCode.VACUOUS) else code
    refused = Verdict.UNSUPPORTED  # such a control guards nothing, and nothing relied on it
    bad = [r for r in results if not r.behaved and r.verdict is not refused]
    places = _releases(results)
    warning = _distrust(bad, sentence, names_place=bool(places)) if bad else ""
    if controls and code is ExitCode.PASS:
        warning = " ".join(filter(None, (_missing_controls(results), warning)))
    if warning:
        if code is ExitCode.PASS:
            code, sentence = ExitCode.ERROR, f"{warning} Otherwise: {sentence}"
        else:
            sentence = f"{sentence} {warning}"
    return Outcome(
        counts={v.value: counts[v] for v in Verdict},
        controls=said,
        exit_code=int(code),
        sentence=sentence,
        downgraded=bool(not_exact := _not_exact(places or {"": results})),
        not_exact=not_exact if places else (),
    )


def _not_exact(places: Mapping[str, Sequence[CaseResult]]) -> tuple[str, ...]:
    """Engines and releases with a null run that is not exact.

    One of several that could not run at all has no verdict to downgrade.
    """
    found = []
    for place, results in places.items():
        nulls = [r.verdict for r in results if r.case.role == "null"]
        is_judged = any(r.counts and r.verdict not in _NOT_RUN for r in results)
        if set(nulls) - {Verdict.PASS} and (is_judged or not place):
            found.append(place)
    return tuple(found)


def _missing_controls(results: Sequence[CaseResult]) -> str:
    """The controls that a session must have and has not; empty when it has them."""
    missing = _missing(results, results)
    for name, of_release in _releases(results).items() if not missing else ():
        passed = [r for r in of_release if r.verdict is Verdict.PASS and r.case.role == "case"]
        missing += [f"{what} for {name}" for what in _missing(of_release, passed) if passed]
    if not missing:
        return ""
    return f"No control was run ({_join(missing)}), so no PASS can be trusted."


def _missing(results: Sequence[CaseResult], guarded: Sequence[CaseResult]) -> list[str]:
    roles = {r.case.role for r in results if r.verdict is not Verdict.UNSUPPORTED}
    missing = [] if "null" in roles else ["no null case"]
    if "control" not in roles and any(_asks_offload(r) for r in guarded):
        missing.append("no planted fault")
    return missing


def _releases(results: Sequence[CaseResult]) -> dict[str, list[CaseResult]]:
    """Results by engine and release, where both sides are of one and there are several."""
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        names = {result.case.baseline.place, result.case.target.place}
        if len(names) == 1:
            groups.setdefault(names.pop(), []).append(result)
    return groups if len(groups) > 1 else {}


def _waived(waived: Sequence[CaseResult]) -> str:
    """How many cells are red as known, and why; empty without any."""
    if not waived:
        return ""
    reasons = list(dict.fromkeys(r.case.waive.reason for r in waived if r.case.waive))
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    head = "1 cell is waived" if len(waived) == 1 else f"{len(waived):,} cells are waived"
    return f"{head}: {_end(reasons[0] + more)}"


def _main(counted: Sequence[CaseResult], *, has_waived: bool = False) -> tuple[ExitCode, str]:
    """Exit code and sentence of the counted cases alone, those that are waived left out."""
    if has_waived and not counted:
        return ExitCode.PASS, "Every cell is red as known."
    counts = Counter(r.verdict for r in counted)
    for verdict in EXIT_ORDER:
        if counts[verdict]:
            return _CODES[verdict], _what_is_wrong(counted, verdict)
    if not counted:
        return ExitCode.VACUOUS, "Nothing was compared: no cell was run, so nothing is proven."
    if not counts[Verdict.PASS]:
        cause = _causes(counted)[0][0]
        head = f"All {len(counted)} cells are" if len(counted) > 1 else "The one cell is"
        text = f"{head} UNSUPPORTED, nothing was compared: {_end(cause)}"
        return ExitCode.UNSUPPORTED, text
    passed = [r for r in counted if r.verdict is Verdict.PASS]
    if not any(_asks_offload(r) or _compares_engines(r) for r in passed):
        return ExitCode.VACUOUS, (
            f"No offload is proven: {_cells(len(passed))} passed, "
            "but none of them asked for offload."
        )
    return ExitCode.PASS, _what_is_proven(passed, [r for r in counted if r not in passed])


def _asks_offload(result: CaseResult) -> bool:
    """On either side: the baseline may be the one that offloads."""
    case = result.case
    return bool(case.expected.offloaded_bytes or case.expected_baseline.offloaded_bytes)


def _compares_engines(result: CaseResult) -> bool:
    """Whether the sides differ in the runner or in the release, and in nothing else."""
    left, right = result.case.baseline, result.case.target
    other_release = replace(left, release=right.release, python=right.python)
    return left != right and right in (replace(left, runner=right.runner), other_release)


def _what_is_proven(passed: Sequence[CaseResult], refused: Sequence[CaseResult]) -> str:
    proofs = ["offload took effect"] if any(_asks_offload(r) for r in passed) else []
    for judge, words in (
        ("placement", "weights stand where they should"),
        ("memory", "memory was saved" if all_saved(passed) else "device memory is as computed"),
        ("ordering", "no copy races a reader"),
        ("integrity", weights_words(passed)),
    ):
        num = sum(_said(r, judge, Verdict.PASS) for r in passed)
        wanted = sum(judge in ("ordering", "integrity") or _asks_offload(r) for r in passed)
        partly = f" (in {num} of {len(passed)} cells)" if num < wanted else ""
        proofs += [words + partly] if num else []
    tokens = [f for r in passed for f in r.findings if f.judge == "tokens"]
    near = sum(f.divergence is not None for f in tokens)
    num = sum(int(f.evidence.get("num_tokens", 0)) for f in tokens)
    if tokens:
        equal = f"all {num:,} tokens are equal"
        close = f"{num:,} tokens are equal but for near-ties in {_cells(near)}"
        proofs.append(close if near else equal)
    head = f"All {len(passed)} cells" if len(passed) > 1 else "The one cell"
    if refused:
        head = f"{len(passed)} of {len(passed) + len(refused)} cells"
    rest = ""
    if refused:
        verb = "is" if len(refused) == 1 else "are"
        rest = f"; {len(refused)} {verb} UNSUPPORTED ({_causes(refused)[0][0]})"
    return f"{head} proven: {_join(proofs)}{rest}."


def _what_is_wrong(counted: Sequence[CaseResult], verdict: Verdict) -> str:
    """The count, the dominating cause, and the first cell it is seen in."""
    wrong = [r for r in counted if r.verdict is verdict]
    verb = (_ONE if len(wrong) == 1 else _MANY)[verdict]
    if len(wrong) < len(counted):
        head = f"{len(wrong)} of {_cells(len(counted))} {verb}"
    else:
        head = f"All {len(wrong)} cells {verb}" if len(wrong) > 1 else f"The one cell {verb}"
    (cause, members), *others = _causes(wrong)
    if verdict is Verdict.VACUOUS or is_absent(members[0]):
        num = f"{len(members)} of them: " if others and verdict is not Verdict.VACUOUS else ""
        body = f"{num}{cause}{_although(members)}"
    else:
        body = ("first " if len(members) > 1 else "") + _told(members[0])
    if others:
        body += f"; {len(wrong) - len(members)} for other causes, first {_told(others[0][1][0])}"
    return f"{head}: {_end(body + _also(counted, verdict))}"


def _although(members: Sequence[CaseResult]) -> str:
    """What a plain paired test would have said of these cells."""
    if not all(_said(r, "tokens", Verdict.PASS) for r in members):
        return ""
    if any(f.judge == "tokens" and f.divergence for r in members for f in r.findings):
        return ""
    return ", although every token is equal"


def _told(result: CaseResult) -> str:
    """A cell and what its deciding judge said."""
    text = result.lead.summary if result.lead else "no judge had a word"
    return f"{result.case.anchor}: {text.rstrip('.')}"


def _also(counted: Sequence[CaseResult], verdict: Verdict) -> str:
    """Counts of the lesser verdicts, so that the sentence hides none."""
    parts = []
    for other in EXIT_ORDER[EXIT_ORDER.index(verdict) + 1 :]:
        if num := sum(r.verdict is other for r in counted):
            parts.append(f"{num} more {(_ONE if num == 1 else _MANY)[other]}")
    return "; " + _join(parts) if parts else ""


def _causes(results: Sequence[CaseResult]) -> list[tuple[str, list[CaseResult]]]:
    """Results by the cause of their verdict, the most frequent first, ties in order of arrival."""
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        groups.setdefault(_cause(result.lead), []).append(result)
    return sorted(groups.items(), key=lambda item: -len(item[1]))


def _cause(lead: Finding | None) -> str:
    if lead is None:
        return "no judge had a word: nothing was compared"
    return str(lead.evidence.get("cause") or lead.summary).rstrip(".")


def _control_status(result: CaseResult) -> str:
    if result.behaved:
        return "ok"
    lead = result.lead
    if result.verdict is Verdict.FAIL and result.not_failed:
        return f"FAIL, but not by {_join(result.not_failed)}: {lead.summary if lead else ''}"
    return f"{result.verdict.value}: {lead.summary if lead else 'no judge had a word'}"


def _distrust(bad: Sequence[CaseResult], sentence: str, *, names_place: bool) -> str:
    """Why this session proves less than `sentence` says; of several releases, which of them."""
    same = [r for r in bad if is_absent(r) and _cause(r.lead) in sentence]
    num = "1 control" if len(same) == 1 else f"{len(same)} controls"
    texts = [f"{num} did not run for the same reason"] if same else []
    for result in [r for r in bad if r not in same]:
        of = f" of {result.case.target.place}" if names_place else ""
        status = shorten(_control_status(result).rstrip("."), MAX_STATUS, placeholder=" ...")
        what = f"{result.case.anchor} gave {status}"
        if result.verdict in _NOT_RUN:
            texts.append(f"a control{of} did not run ({what})")
        elif result.case.role == "null":
            texts.append(f"the null case{of} is not exact ({what}), so no EXACT verdict{of} holds")
        else:
            faults = ", ".join(result.case.target.faults) or "planted"
            texts.append(
                f"the fault {faults} was not caught ({what}), so no PASS{of} can be trusted"
            )
    text = "; ".join(texts[:2]) + (f"; and {len(texts) - 2} more" if len(texts) > 2 else "")
    return f"{text[0].upper()}{text[1:]}."


def _said(result: CaseResult, judge: str, verdict: Verdict) -> bool:
    return any(f.judge == judge and f.verdict is verdict for f in result.findings)


def _cells(num: int) -> str:
    return f"{num:,} {'cell' if num == 1 else 'cells'}"


def _join(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def _end(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
