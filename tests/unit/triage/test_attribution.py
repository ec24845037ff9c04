"""Which axis a difference comes with: one axis at a time, offload last."""

from itertools import pairwise

from harness.core import Finding, OffloadConfig, Setting, Verdict
from harness.triage.attribution import attribute, steps_between

BASE = Setting(runner="v1")
OTHER = Setting(runner="v2", offload=OffloadConfig(cpu_offload_gb=1), engine_args={"seed": 1})


def say(verdict):
    return (Finding(judge="tokens", verdict=verdict, summary=f"it is {verdict.value}"),)


def run_attribute(culprit, baseline=BASE, target=OTHER):
    """Attribute with a stub in which only the step that changes `culprit` differs."""

    def look(pair):
        before, after = pair
        changed = before.differing_axes(after)
        return say(Verdict.FAIL if changed == (culprit,) else Verdict.PASS)

    return attribute(baseline, target, None, pair=lambda a, b, _w: (a, b), look=look)


def test_one_axis_leaves_nothing_to_attribute():
    assert [] == steps_between(BASE, Setting(runner="v2"))
    assert run_attribute("runner", target=Setting(runner="v2")) is None


def test_each_step_changes_one_axis_and_the_last_is_the_target():
    steps = steps_between(BASE, OTHER)

    assert ["engine_args", "runner", "offload"] == [axis for axis, _ in steps]
    assert OTHER == steps[-1][1]
    settings = [BASE, *(s for _, s in steps)]
    assert all(len(a.differing_axes(b)) == 1 for a, b in pairwise(settings))


def test_the_first_axis_that_differs_is_named():
    assert "the difference comes with runner (" in run_attribute("runner")
    assert "the difference comes with offload (" in run_attribute("offload")


def test_no_step_that_differs_attributes_nothing():
    assert run_attribute("enforce_eager") is None
