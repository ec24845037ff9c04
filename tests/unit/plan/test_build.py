from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from harness.core import ModelSpec, OffloadConfig, Setting, Tier, Workload
from harness.plan import build_pair, build_plan, expect, release_pairs, sort_out
from harness.plan.build import CONTROL_FAULT
from tests.strategies import offload_configs, runners

quick = hypothesis_settings(max_examples=30, deadline=None, derandomize=True, database=None)
NONE1, NONE2 = Setting(runner="v1"), Setting(runner="v2")
UVA1 = replace(NONE1, offload=OffloadConfig(cpu_offload_gb=1))
UVA2 = replace(NONE2, offload=OffloadConfig(cpu_offload_gb=1))
RING2 = replace(NONE2, offload=OffloadConfig(offload_group_size=2))
UVA1_MP = replace(UVA1, multiprocessing=True)


def roles(plan):
    return [p.case.role for p in plan.cases]


def targets(plan, role="case"):
    return [p.case.target for p in plan.cases if p.case.role == role]


def test_guards_come_first_then_targets_in_the_order_given(make_workload):
    plan = build_plan([UVA2, UVA1, RING2, UVA1_MP], [make_workload()])

    assert ["null"] * 3 + ["runner", "control"] + ["case"] * 4 == roles(plan)
    assert [NONE2, NONE1, replace(NONE1, multiprocessing=True)] == targets(plan, "null")
    assert [UVA2, UVA1, RING2, UVA1_MP] == targets(plan)


def test_null_case_is_the_baseline_twice_in_two_runs(make_workload):
    planned = build_plan([UVA1], [make_workload()]).cases[0]

    assert NONE1 == planned.case.baseline == planned.case.target
    assert (0, 1) == (planned.baseline_key.repeat, planned.target_key.repeat)
    assert planned.baseline_key.key != planned.target_key.key


def test_runner_case_compares_v1_with_v2_without_offload(make_workload):
    (planned,) = (p for p in build_plan([UVA2, UVA1], [make_workload()]).cases
                  if p.case.role == "runner")  # fmt: skip

    assert (NONE1, NONE2) == (planned.case.baseline, planned.case.target)


@pytest.mark.parametrize("settings", [[UVA1], [UVA2, RING2], [UVA1_MP, UVA2]])
def test_runner_case_needs_both_runners_with_nothing_else_between_them(make_workload, settings):
    assert "runner" not in roles(build_plan(settings, [make_workload()]))


def test_control_damages_the_first_target_that_offloads_anything(make_workload):
    tiny = replace(UVA1, offload=OffloadConfig(cpu_offload_gb=1e-12))
    ignored = replace(NONE1, offload=OffloadConfig(offload_params=frozenset({"mlp"})))

    plan = build_plan([tiny, ignored, RING2], [make_workload()])

    assert [replace(RING2, faults=("host-copy-damaged",))] == targets(plan, "control")
    (control,) = (p.case for p in plan.cases if p.case.role == "control")
    assert NONE2 == control.baseline
    assert Tier.EXACT is control.tier


def test_faults_are_planted_in_targets_only(make_workload):
    named = replace(UVA2, faults=("a",))

    plan = build_plan([UVA1, named], [make_workload()], faults=("a", "b"))

    assert [("a", "b"), ("a", "b")] == [t.faults for t in targets(plan)]
    assert [("host-copy-damaged",)] == [t.faults for t in targets(plan, "control")]
    assert {()} == {p.case.baseline.faults for p in plan.cases}
    assert {()} == {t.faults for role in ("null", "runner") for t in targets(plan, role)}


def test_target_differs_from_its_baseline_in_offload_and_faults_only(make_workload):
    setting = replace(
        UVA1_MP, enforce_eager=False, engine_args={"seed": 1}, env={"A": "1"}, python="p",
        engine="vllm",
    )  # fmt: skip

    (planned,) = (p for p in build_plan([setting], [make_workload()], faults=("x",)).cases
                  if p.case.role == "case")  # fmt: skip

    assert ("offload", "faults") == planned.case.baseline.differing_axes(planned.case.target)


def test_setting_without_offload_is_a_baseline_and_no_target(make_workload):
    plan = build_plan([NONE1, NONE2], [make_workload()])

    assert ["null", "null", "runner", "control"] == roles(plan)
    control = plan.cases[-1].case.target
    assert ("uva", (CONTROL_FAULT,)) == (control.offload.resolved_backend, control.faults)


def test_setting_that_asks_for_what_is_ignored_is_a_target(make_workload):
    ignored = replace(NONE1, offload=OffloadConfig(offload_params=frozenset({"mlp"})))

    (case,) = (p.case for p in build_plan([ignored], [make_workload()]).cases
               if p.case.role == "case")  # fmt: skip

    assert ("offload_params=mlp",) == case.expected.ignored_requests


def test_without_controls_only_what_is_asked_for_is_left(make_workload):
    assert ["runner", "case", "case"] == roles(
        build_plan([UVA1, UVA2], [make_workload()], controls=False)
    )


def test_each_unique_setting_is_launched_once(make_workload):
    plan = build_plan([UVA1, UVA2, RING2, UVA1], [make_workload()])

    # v1 and v2 without offload, each once more for its null case; a control; three targets
    assert 4 + 1 + 3 == len(plan.runs) == len({key.key for key in plan.runs})
    assert 3 == len(targets(plan))


def test_case_ids_read_as_documented(make_workload):
    plan = build_plan([UVA1, UVA2], [make_workload()])

    assert [
        "null-tiny-llama/short/v1-none-eager..v1-none-eager",
        "null-tiny-llama/short/v2-none-eager..v2-none-eager",
        "runner-tiny-llama/short/v1-none-eager..v2-none-eager",
        "control-tiny-llama/short/v1-none-eager..v1-uva-gb1-pin1-eager!host-copy-damaged",
        "tiny-llama/short/v1-none-eager..v1-uva-gb1-pin1-eager",
        "tiny-llama/short/v2-none-eager..v2-uva-gb1-pin1-eager",
    ] == [p.case.case_id for p in plan.cases]


def test_settings_that_read_the_same_get_ids_of_their_own(make_workload):
    explicit = replace(
        RING2, offload=OffloadConfig(offload_group_size=2, offload_backend="prefetch")
    )

    ids = [p.case.case_id for p in build_plan([RING2, explicit], [make_workload()]).cases]

    assert explicit.setting_id == RING2.setting_id
    assert len(ids) == len(set(ids))
    assert ids[-1].startswith(f"{ids[-2]}~")


def test_every_workload_gets_its_own_cases_and_one_control_guards_all(make_workload):
    works = [make_workload("short"), make_workload("long", name="other", num_hidden_layers=4)]

    plan = build_plan([UVA1, UVA2], works)

    assert ["null"] * 4 + ["runner"] * 2 + ["control"] + ["case"] * 4 == roles(plan)
    layers = [len(p.case.expected.offloaded_layers) for p in plan.cases if p.case.role == "case"]
    assert [8, 8, 4, 4] == layers


@pytest.mark.parametrize("server", [True, False])
def test_axes_tell_a_server_apart(make_workload, server):
    target = replace(RING2, engine="vllm", server=server)

    case = build_pair(target.baseline(), target, make_workload()).case

    assert {"server": "on" if server else "off"}.items() <= case.axes.items()


def test_axes_name_what_the_target_asks_for(make_workload):
    offload = OffloadConfig(offload_group_size=2, pin_memory=False, uva=False)

    case = build_pair(NONE2, replace(RING2, offload=offload), make_workload()).case

    assert {
        "model": "tiny-llama", "runner": "v2", "backend": "prefetch",
        "offload": "prefetch-g2n1s1-uva0-pin0", "pin": "off", "uva": "off",
        "multiprocessing": "off", "server": "off", "eager": "on", "engine": "reference",
    } == case.axes  # fmt: skip


def test_any_two_settings_make_a_pair_with_both_expectations(make_workload):
    work = make_workload()

    planned = build_pair(UVA1, RING2, work, tier=Tier.LOGPROB)

    assert (UVA1, RING2) == (planned.baseline_key.setting, planned.target_key.setting)
    assert expect(UVA1, work.model) == planned.case.expected_baseline
    assert expect(RING2, work.model) == planned.case.expected
    assert ("case", Tier.LOGPROB) == (planned.case.role, planned.case.tier)


def test_pair_of_equal_settings_shares_one_run_for_the_judges_to_see(make_workload):
    planned = build_pair(UVA1, UVA1, make_workload())

    assert planned.baseline_key == planned.target_key


def test_tier_is_that_of_targets_and_never_loosens_a_guard(make_workload):
    plan = build_plan([UVA1, UVA2], [make_workload()], tier=Tier.LOGPROB)

    tiers = {p.case.role: p.case.tier for p in plan.cases}
    assert {
        "null": Tier.EXACT, "control": Tier.EXACT, "runner": Tier.LOGPROB, "case": Tier.LOGPROB
    } == tiers  # fmt: skip


def test_case_the_engine_rules_out_is_set_apart_with_its_reason(make_workload):
    plan = build_plan([UVA1, UVA2], [make_workload()], supports={"runners": ["v1"]})

    assert ["null", "control", "case"] == roles(plan)
    assert ["runner", "case"] == [s.case.role for s in plan.unsupported]
    assert {"engine 'reference' has runners v1, not 'v2'"} == {s.reason for s in plan.unsupported}


def test_guards_are_taken_from_what_the_engine_can_run(make_workload):
    graphs = [replace(s, enforce_eager=False) for s in (UVA1, UVA2)]

    plan = build_plan([*graphs, UVA1, UVA2], [make_workload()], supports={"graphs": "not yet"})

    assert ["null", "null", "runner", "control", "case", "case"] == roles(plan)
    assert all(p.case.target.enforce_eager for p in plan.cases)
    assert ["case", "case"] == [s.case.role for s in plan.unsupported]


def test_a_stand_in_is_an_axis(make_workload):
    work = make_workload()
    work = replace(work, model=replace(work.model, stand_in_for="owner/real-1B"))

    assert "owner/real-1B" == build_pair(NONE2, UVA2, work).case.axes["stand_in_for"]


def test_empty_plan_is_empty(make_workload):
    assert () == build_plan([], [make_workload()]).cases
    assert () == build_plan([UVA1], []).cases


@quick
@given(
    chosen=st.lists(
        st.builds(Setting, runner=runners, offload=offload_configs(), multiprocessing=st.booleans())
    )
)
def test_ids_are_unique_and_the_plan_is_the_same_twice(chosen):
    model = ModelSpec(
        name="m",
        architecture="LlamaForCausalLM",
        config={
            "num_hidden_layers": 3, "hidden_size": 8, "num_attention_heads": 2,
            "intermediate_size": 4, "vocab_size": 8,
        },
        path="p",
    )  # fmt: skip
    work = Workload(name="w", model=model, prompt_token_ids=((1,),))

    plan = build_plan(chosen, [work])

    ids = [p.case.case_id for p in plan.cases]
    assert len(ids) == len(set(ids))
    assert plan == build_plan(chosen, [work])
    keys = {key.key for key in plan.runs}
    assert all({p.baseline_key.key, p.target_key.key} <= keys for p in plan.cases)


@pytest.mark.parametrize(
    ("instruments", "judges"),
    [
        ((), ("tokens",)),
        (("ordering",), ("tokens",)),
        (("integrity",), ("tokens", "integrity")),
        (("integrity-full",), ("tokens", "integrity")),
    ],
)
def test_the_control_must_fail_by_every_judge_that_can_see_wrong_weights(
    make_workload, instruments, judges
):
    plan = build_plan([replace(UVA1, instruments=instruments)], [make_workload()])
    wanted = {p.case.role: p.case.must_fail for p in plan.cases}
    assert {"null": (), "control": judges, "case": ()} == wanted


def of_releases(*labels, settings=(UVA1, UVA2), engine="vllm"):
    """The settings under an interpreter of each release."""
    return [
        replace(s, engine=engine, release=label, python=f"/{label}/bin/python")
        for label in labels
        for s in settings
    ]


def ends(planned, *, of=lambda setting: setting.release):
    return [(of(p.case.baseline), of(p.case.target)) for p in planned]


def only(plan, role):
    return [p for p in plan.cases if p.case.role == role]


def test_each_release_is_held_against_the_one_before_it_by_log_probabilities(make_workload):
    plan = build_plan(of_releases("0.9", "0.28", "0.3"), [make_workload()])

    pairs = only(plan, "release")
    assert [("0.9", "0.28"), ("0.28", "0.3")] * 2 == ends(pairs)
    assert [("v1", "v1")] * 2 + [("v2", "v2")] * 2 == ends(pairs, of=lambda s: s.runner)
    assert {Tier.LOGPROB} == {p.case.tier for p in pairs}
    assert {("python", "release")} == {p.case.baseline.differing_axes(p.case.target) for p in pairs}
    assert all(p.case.baseline.is_baseline and p.case.target.is_baseline for p in pairs)
    assert "tiny-llama/release-v1-none-eager@vllm-0.28" == pairs[0].case.anchor
    assert pairs[0].case.case_id.startswith("release-tiny-llama/short/")


def test_no_pair_within_a_release_differs_in_release(make_workload):
    plan = build_plan(of_releases("0.26", "0.28"), [make_workload()])

    within = [p for p in plan.cases if p.case.role != "release"]
    assert all(a == b for a, b in ends(within))
    assert all(a == b for a, b in ends(within, of=lambda s: s.python))


def test_guards_come_once_for_each_release(make_workload):
    plan = build_plan(of_releases("0.26", "0.28", "0.32"), [make_workload()])

    assert ["0.26", "0.28", "0.32"] == [p.case.target.release for p in only(plan, "runner")]
    assert ["0.26", "0.28", "0.32"] == [p.case.target.release for p in only(plan, "control")]
    assert 6 == len(only(plan, "null"))


def test_a_pair_across_releases_never_shares_a_run_or_its_process(make_workload):
    plan = build_plan(of_releases("0.26", "0.28"), [make_workload()])

    for planned in only(plan, "release"):
        assert planned.baseline_key.key != planned.target_key.key
        assert planned.baseline_key.setting.python != planned.target_key.setting.python
    places = {}
    for key in plan.runs:
        places.setdefault(key.key, set()).add((key.setting.release, key.setting.python))
    assert all(1 == len(found) for found in places.values())


def test_only_baselines_of_one_kind_are_held_against_each_other(make_workload):
    modes = [UVA1, UVA1_MP, replace(UVA1, enforce_eager=False)]
    settings = of_releases("0.26", settings=modes) + of_releases("0.28", settings=modes[1:])

    pairs = release_pairs(settings, [make_workload()])

    kinds = ends(pairs, of=lambda s: (s.multiprocessing, s.enforce_eager))
    assert [((True, True),) * 2, ((False, False),) * 2] == kinds


def test_a_release_without_the_kind_is_passed_over(make_workload):
    settings = [
        *of_releases("0.26", settings=[UVA1, UVA2]),
        *of_releases("0.28", settings=[UVA2]),
        *of_releases("0.32", settings=[UVA1, UVA2]),
    ]

    assert [("0.26", "0.32"), ("0.26", "0.28"), ("0.28", "0.32")] == ends(
        release_pairs(settings, [make_workload()])
    )


def test_releases_of_two_engines_are_not_mixed(make_workload):
    settings = of_releases("1") + of_releases("2", engine="vllm-cpu-emulation")

    assert [] == release_pairs(settings, [make_workload()])


def test_interpreters_without_a_label_are_releases_too(make_workload):
    settings = [replace(UVA1, engine="vllm", python=p) for p in ("/a/python", "/b/python")]

    assert [("/a/python", "/b/python")] == ends(
        release_pairs(settings, [make_workload()]), of=lambda s: s.python
    )


def test_one_label_under_two_interpreters_makes_no_pair(make_workload):
    twice = [replace(UVA1, engine="vllm", release="1", python=p) for p in ("/a", "/b")]

    assert [] == release_pairs(twice, [make_workload()])


def test_release_pairs_come_with_several_releases_only(make_workload):
    one = build_plan(of_releases("0.26"), [make_workload()])
    assert [] == only(one, "release")
    both = of_releases("0.26", "0.28")
    assert only(build_plan(both, [make_workload()]), "release") == release_pairs(
        both, [make_workload()]
    )


def test_release_is_an_axis_where_there_is_one(make_workload):
    (setting,) = of_releases("0.26", settings=[UVA1])

    assert "0.26" == build_pair(setting.baseline(), setting, make_workload()).case.axes["release"]


def test_release_pair_that_the_engine_rules_out_is_set_apart(make_workload):
    pairs = release_pairs(of_releases("0.26", "0.28"), [make_workload()])

    plan = sort_out(pairs, {"runners": ["v2"]})

    assert (["v2"], ["v1"]) == (
        [p.case.target.runner for p in plan.cases],
        [s.case.target.runner for s in plan.unsupported],
    )
