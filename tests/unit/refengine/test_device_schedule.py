import pytest

from harness.refengine.device import SCHEDULES, SimulatedDevice, create_scheduler


def run_order(schedule, seed=0, waits=True):
    """Six pieces of work and six copies on three streams; the order they ran in."""
    device = SimulatedDevice(schedule=schedule, seed=seed)
    order = []
    streams = [device.current_stream(), device.new_stream("copy"), device.new_stream("side")]
    event = device.new_event()
    for round_idx in range(4):
        for stream in streams:
            with device.stream(stream):
                work = device.launch(order.append, f"{stream.name}{round_idx}")
                work.is_copy = stream.name == "copy"
        if waits and round_idx == 1:
            streams[1].record_event(event)
            streams[2].wait_event(event)
    device.synchronize()
    return order


def test_in_order_is_the_launch_order():
    expected = [f"{name}{i}" for i in range(4) for name in ("default", "copy", "side")]

    assert expected == run_order("in_order")


def test_copy_late_runs_copies_only_when_nothing_else_can():
    assert run_order("copy_late") == [
        "default0", "side0", "default1", "side1", "default2", "default3",
        "copy0", "copy1", "side2", "side3", "copy2", "copy3",
    ]  # fmt: skip


def test_compute_late_runs_copies_as_soon_as_they_can():
    order = run_order("compute_late")

    assert order[:4] == ["copy0", "copy1", "copy2", "copy3"]
    assert order[4:6] == ["default0", "side0"]


def test_a_seed_decides_the_whole_order():
    orders = {seed: run_order("seeded", seed) for seed in range(8)}

    assert orders == {seed: run_order("seeded", seed) for seed in range(8)}
    assert len({tuple(order) for order in orders.values()}) > 4


@pytest.mark.parametrize("seed", range(20))
def test_no_order_breaks_streams_or_waits(seed):
    order = run_order("seeded", seed)

    for name in ("default", "copy", "side"):
        assert [f"{name}{i}" for i in range(4)] == [n for n in order if n.startswith(name)]
    assert order.index("copy1") < order.index("side2")


def test_without_the_wait_some_seed_breaks_its_order():
    orders = [run_order("seeded", seed, waits=False) for seed in range(20)]

    assert any(order.index("copy1") > order.index("side2") for order in orders)


def test_an_unknown_schedule_lists_the_known_ones():
    with pytest.raises(ValueError, match="schedule='late' must be one of in_order, seeded"):
        create_scheduler("late")
    assert SCHEDULES == ("in_order", "seeded", "copy_late", "compute_late")
