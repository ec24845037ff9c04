"""Lifecycle steps of the vLLM adapter, over a stand-in for the engine; needs no vLLM."""

from types import SimpleNamespace

import pytest

from harness.core import HarnessError, Step
from harness.engines.base import EngineRefused, InternalMovedError
from harness.engines.vllm import steps
from harness.engines.vllm.steps import arguments_of, refuse_behind_server, take_step

RELOAD = Step(kind="reload_weights", args={"path": "/other", "label": "changed"})


class Door:
    """Notes what it is asked; `answers` are those of the extension."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def rpc(self, method, args):
        self.asked.append((method, *args))
        if args and args[0] == "harness.engines.patches:held_of":
            return self.answers["held"]
        return [self.answers.get(args[1] if method == "harness_ask" and len(args) > 1 else method)]

    def sleep(self, level):
        self.asked.append(("sleep", level))

    def wake_up(self, tags):
        self.asked.append(("wake_up", tags))

    def forget_prefixes(self):
        self.asked.append(("forget_prefixes",))


@pytest.mark.parametrize("name", ["weights_path", "path"])
def test_a_reload_uses_the_workers_own_name_for_the_path_and_drops_cached_prefixes(name):
    door = Door(reload_weights=f"weights_iterator,{name}")
    take_step(door, RELOAD)
    assert door.asked[1:] == [
        ("harness_reload", "/other", name),
        ("forget_prefixes",),
        ("harness_asleep", False),
    ]


def test_a_release_whose_reload_takes_no_path_is_refused_with_what_it_takes():
    with pytest.raises(EngineRefused, match=r"reload_weights\(weights_iterator\) of this release"):
        take_step(Door(reload_weights="weights_iterator"), RELOAD)


def test_a_method_that_is_not_there_is_refused_by_name():
    args = {"seed": 1, "num_values": 2, "params": ["a"]}
    with pytest.raises(EngineRefused, match="no method apply_sparse_weight_patches"):
        take_step(
            Door(apply_sparse_weight_patches=""),
            Step(kind="apply_sparse_weight_patches", args=args),
        )


def test_a_patch_is_handed_on_whole():
    door = Door(apply_sparse_weight_patches="patches", held=[["a"], ["b"]])
    args = {"seed": 1, "num_values": 2, "params": ("a", "b")}
    take_step(door, Step(kind="apply_sparse_weight_patches", args=args))
    assert ("harness_patch", 1, 2, ["a", "b"]) in door.asked


def test_a_patch_of_a_parameter_that_no_rank_has_is_refused_and_nothing_is_patched():
    door = Door(apply_sparse_weight_patches="patches", held=[["a"], []])
    args = {"seed": 1, "num_values": 2, "params": ("a", "b")}
    with pytest.raises(HarnessError, match=r"params='b' is a parameter of no rank .*\(of 2\)"):
        take_step(door, Step(kind="apply_sparse_weight_patches", args=args))
    assert "harness_patch" not in {method for method, *_ in door.asked}


def test_weights_stay_away_after_level_2_only_where_they_really_went():
    for freed in (True, False):
        door = Door(harness_ask=freed)
        take_step(door, Step(kind="sleep", args={"level": 2}))
        assert (("harness_asleep", True) in door.asked) is freed
    door = Door(harness_ask=True)
    take_step(door, Step(kind="sleep", args={"level": 1}))
    assert door.asked == [("sleep", 1)]


@pytest.mark.parametrize(("args", "tags"), [({}, None), ({"tags": ("weights",)}, ["weights"])])
def test_waking_names_the_tags_or_all(args, tags):
    door = Door()
    take_step(door, Step(kind="wake_up", args=args))
    assert door.asked == [("wake_up", tags)]


def view(worker_method, runner_method=None):
    worker = SimpleNamespace()
    if worker_method:
        worker.reload_weights = worker_method
    runner = SimpleNamespace()
    if runner_method:
        runner.reload_weights = runner_method
    return SimpleNamespace(worker=worker, runner=runner)


def hand_on(*args, **kwargs):
    """Passes on all it is given."""


def take_path(weights_iterator=None, weights_path=None):
    """Has arguments of its own."""


def test_arguments_are_those_of_the_method_that_is_handed_to():
    assert arguments_of(view(take_path), "reload_weights") == "weights_iterator,weights_path"
    assert (
        arguments_of(view(hand_on, take_path), "reload_weights") == "weights_iterator,weights_path"
    )


def test_v2_of_a_release_that_hands_on_to_v1_has_the_arguments_of_v1(monkeypatch):
    owner = SimpleNamespace(GPUModelRunner=SimpleNamespace(reload_weights=take_path))
    monkeypatch.setattr(steps.VllmModules, "module", lambda self, role: {"runner.v1": owner}[role])
    found = arguments_of(view(hand_on, hand_on), "reload_weights")
    assert found == "weights_iterator,weights_path"


def test_a_worker_without_the_method_has_no_arguments_of_it():
    assert arguments_of(view(None), "reload_weights") == ""


def test_a_method_that_hands_on_to_nothing_has_moved():
    with pytest.raises(InternalMovedError, match=r"SimpleNamespace\.reload_weights"):
        arguments_of(view(hand_on), "reload_weights")


def test_behind_a_server_generates_only():
    refuse_behind_server(SimpleNamespace(steps=(Step(), Step())))
    with pytest.raises(EngineRefused, match="'reload_weights changed' is done in process only"):
        refuse_behind_server(SimpleNamespace(steps=(Step(), RELOAD, Step())))
