from dataclasses import replace

import pytest

from harness.core import IntegrityTrace, Verdict, WeightReads
from harness.judge.integrity import _hashed_resident, judge_integrity
from tests.builders import (
    NUM_LAYERS,
    PREFETCH,
    baseline_run,
    build_case,
    noop_run,
    param_names,
    target_run,
)


def reads_of(name, **changes):
    layer = int(name.split(".")[1]) if name.startswith("layers.") else None
    reads = WeightReads(
        name=name, layer_idx=layer, expected=f"of {name}", digests={f"of {name}": 3}
    )
    return replace(reads, **changes)


def trace_of(*changed, **changes):
    """Every parameter right, but for those given."""
    wrong = {reads.name: reads for reads in changed}
    names = ["embed", *param_names(range(NUM_LAYERS)), "rotary"]
    reads = tuple(wrong.get(name, reads_of(name)) for name in names)
    trace = IntegrityTrace(mode="sampled", num_reads=900, num_hashed=30, reads=reads)
    return replace(trace, **changes)


def case_of(instruments=("integrity",)):
    case = build_case(PREFETCH)
    return replace(
        case,
        baseline=replace(case.baseline, instruments=instruments),
        target=replace(case.target, instruments=instruments),
    )


def judge(case=None, left=None, right=None, **probe):
    case = case or case_of()
    return judge_integrity(
        case,
        baseline_run(case, integrity=left or trace_of(), **probe),
        target_run(case, integrity=right or trace_of(), **probe),
    )


@pytest.mark.parametrize("instrument", ["integrity", "integrity-full"])
def test_right_weights_pass_and_say_how_many_reads_were_hashed(instrument):
    found = judge(case_of((instrument,)))

    assert found.verdict is Verdict.PASS
    assert "All 30 hashes of 10 tensors, taken at 900 reads" in found.summary


def test_another_layers_bytes_are_named_with_layer_parameter_and_slot():
    name = "layers.3.mlp"
    wrong = reads_of(name, digests={f"of {name}": 2, "of layers.1.mlp": 4})
    found = judge(right=trace_of(replace(wrong, slots={"of layers.1.mlp": 0})))

    assert found.verdict is Verdict.FAIL
    assert found.summary == "layers.3.mlp in slot 0 holds layers.1, at 4 of 6 hashed reads"
    assert found.evidence["cause"] == "a layer computed with another layer's weights"
    (row,) = found.evidence["wrong"]
    assert (row["param"], row["layer"], row["slot"], row["holds"]) == (name, 3, 0, "layers.1")


def test_the_bytes_of_another_parameter_of_the_same_layer_are_not_taken_for_a_layer():
    wrong = reads_of("layers.3.mlp", digests={"of layers.3.attn": 1})

    assert "no parameter's" in judge(right=trace_of(wrong)).summary


def test_bytes_of_nobody_are_called_so():
    found = judge(right=trace_of(reads_of("layers.0.attn", digests={"noise": 1})))

    assert found.verdict is Verdict.FAIL
    assert "holds bytes that are no parameter's" in found.summary
    assert found.evidence["wrong"][0]["holds"] is None


def test_every_wrong_content_is_kept_and_the_first_is_told():
    wrong = [reads_of(f"layers.{i}.attn", digests={"noise": 1}) for i in range(3)]
    found = judge(right=trace_of(*wrong))

    assert found.summary.endswith("(and 2 more)")
    assert [row["layer"] for row in found.evidence["wrong"]] == [0, 1, 2]


def test_wrong_weights_in_the_baseline_fail_too():
    found = judge(left=trace_of(reads_of("embed", digests={"noise": 1})))

    assert found.verdict is Verdict.FAIL
    assert "embed holds" in found.summary
    assert "(in the baseline)" in found.summary


def test_derived_tensors_that_differ_between_the_sides_fail():
    other = reads_of("rotary", expected="x", digests={"x": 3})
    found = judge(right=trace_of(other))

    assert found.verdict is Verdict.FAIL
    assert "rotary is held against other bytes on each side" in found.summary


def test_it_abstains_when_nobody_asked():
    assert judge(case_of(("ordering",))) is None


def at_rest(*changed):
    """As an engine with graphs gives it: a hash each, and one of each slot by its holder."""
    slot = reads_of("layers.1.mlp")
    trace = trace_of(*changed, mode="rest", num_reads=11, num_hashed=11)
    return replace(trace, reads=(*trace.reads, slot), not_observed=("weights while in use",))


def test_hashes_at_rest_pass_and_are_called_so():
    found = judge(left=at_rest(), right=at_rest(), sees_compute=False)

    assert found.verdict is Verdict.PASS
    assert found.summary == (
        "All 11 hashes of 11 tensors, taken at rest after the last step "
        "(not at the moment of compute), are the checkpoint's."
    )
    evidence = found.evidence["target"]
    assert ("rest", ["weights while in use"]) == (evidence["mode"], evidence["not_observed"])


def test_a_host_copy_that_is_wrong_at_rest_fails():
    wrong = reads_of("layers.2.attn", digests={"noise": 1})
    found = judge(left=at_rest(), right=at_rest(wrong))

    assert found.verdict is Verdict.FAIL
    assert "layers.2.attn holds bytes that are no parameter's" in found.summary


def test_a_slot_that_holds_a_layer_that_is_no_owner_fails_with_its_number():
    whole = at_rest()
    slot = reads_of("layers.1.mlp", digests={"of layers.0.mlp": 1}, slots={"of layers.0.mlp": 2})
    found = judge(left=at_rest(), right=replace(whole, reads=(*whole.reads[:-1], slot)))

    assert found.verdict is Verdict.FAIL
    assert found.summary == "layers.1.mlp in slot 2 holds layers.0, at 1 of 1 hashed reads"


def test_hashes_at_rest_prove_nothing_where_compute_can_be_watched():
    found = judge(left=at_rest(), right=at_rest())

    assert found.verdict is Verdict.VACUOUS
    assert "hashed at rest only, though compute can be watched" in found.summary


def test_a_parameter_that_was_not_hashed_at_rest_is_not_proven():
    whole = at_rest()
    found = judge(left=whole, right=replace(whole, reads=whole.reads[1:]), sees_compute=False)

    assert found.verdict is Verdict.VACUOUS
    assert "embed is resident and was never hashed" in found.summary


def test_hashes_that_are_missing_prove_nothing():
    case = case_of()
    found = judge_integrity(case, baseline_run(case, integrity=trace_of()), target_run(case))

    assert found.verdict is Verdict.VACUOUS
    assert "missing on the target" in found.summary


def test_no_hash_at_all_proves_nothing():
    found = judge(right=trace_of(num_hashed=0))

    assert found.verdict is Verdict.VACUOUS
    assert "nothing was hashed" in found.summary


def test_an_offloaded_parameter_that_was_never_read_is_not_proven():
    whole = trace_of()
    found = judge(right=replace(whole, reads=whole.reads[:-2]))

    assert found.verdict is Verdict.VACUOUS
    assert "layers.3.mlp is offloaded and was never hashed" in found.summary


def test_a_resident_parameter_that_was_never_read_is_not_proven_either():
    whole = trace_of()
    found = judge(right=replace(whole, reads=whole.reads[1:]))

    assert found.verdict is Verdict.VACUOUS
    assert "embed is resident and was never hashed on the target" in found.summary


def test_what_no_checkpoint_has_is_not_called_the_checkpoints():
    found = judge(right=trace_of(reads_of("rotary", is_first_read=True)))

    assert found.verdict is Verdict.PASS
    assert found.summary.endswith(
        "are the checkpoint's, and for the 1 that no checkpoint has (rotary) "
        "those of its first read."
    )
    assert found.evidence["target"]["num_held_against_first_read"] == 1


def test_weights_held_against_nothing_but_their_first_read_are_not_proven():
    whole = trace_of()
    dummy = replace(whole, reads=tuple(replace(r, is_first_read=True) for r in whole.reads))
    found = judge(left=dummy, right=dummy)

    assert found.verdict is Verdict.VACUOUS
    assert "no parameter is in a checkpoint, each was held against its first read" in found.summary


def changed_by_loading(trace):
    """The same, where no checkpoint has the bytes of an offloaded parameter."""
    reads = [replace(r, is_first_read="layers.3.mlp" in r.name) for r in trace.reads]
    assert any(r.is_first_read for r in reads)
    return replace(trace, reads=tuple(reads))


def test_what_loading_changed_is_held_against_the_side_that_has_it_on_the_device():
    changed = changed_by_loading(trace_of())
    found = judge(left=changed, right=changed)

    assert found.verdict is Verdict.PASS
    assert found.summary.endswith("first read, 1 of them the other side's resident ones.")


def test_what_loading_changed_is_not_proven_by_a_side_that_never_computed_with_it():
    changed = changed_by_loading(trace_of())
    unread = [r for r in changed.reads if not r.is_first_read]

    found = judge(left=replace(changed, reads=tuple(unread)), right=changed)

    assert found.verdict is Verdict.VACUOUS
    assert "is in no checkpoint, it was only held against its own first read" in found.summary


def test_after_a_step_each_side_vouches_for_the_other_where_one_is_resident():
    rest = replace(changed_by_loading(trace_of()), mode="rest")
    assert _hashed_resident(probe(rest, is_offloaded=False), probe(rest, is_offloaded=True))
    assert not _hashed_resident(probe(rest, is_offloaded=True), probe(rest, is_offloaded=True))
    unread = replace(rest, reads=())
    assert not _hashed_resident(probe(unread, is_offloaded=False), probe(rest, is_offloaded=True))


def probe(trace, *, is_offloaded):
    """A worker whose one parameter is the offloaded layer's."""
    run = baseline_run(case_of(), integrity=trace)
    (param,) = [p for p in run.probe.params if "layers.3.mlp" in p.name][:1]
    return replace(run.probe, params=(replace(param, is_offloaded=is_offloaded),))


def test_what_loading_changed_must_be_the_same_bytes_on_both_sides():
    changed = changed_by_loading(trace_of())
    other = [
        replace(r, expected="0" * 16, digests={"0" * 16: 1}) if r.is_first_read else r
        for r in changed.reads
    ]
    found = judge(left=changed, right=replace(changed, reads=tuple(other)))

    assert found.verdict is Verdict.FAIL
    assert "is held against other bytes on each side: one is wrong" in found.summary


def test_an_offload_that_never_took_effect_is_not_blamed_for_right_weights():
    case = case_of()
    found = judge_integrity(
        case, baseline_run(case, integrity=trace_of()), noop_run(case, integrity=trace_of())
    )

    assert found.verdict is Verdict.PASS
