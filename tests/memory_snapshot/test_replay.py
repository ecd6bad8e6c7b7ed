"""The replay of a snapshot's history gives the figures that a simulated allocator remembers."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lightning_perf.memory_snapshot.allocations import find_lifetimes, replay_reserved
from lightning_perf.memory_snapshot.build import build_report
from lightning_perf.memory_snapshot.document import Moment
from lightning_perf.memory_snapshot.snapshot import read_snapshot
from tests.memory_snapshot.allocator import MIB, Allocator, backward, device_of, forward, frames, optimizer, train


def categories(moment: Moment) -> dict[str, int]:
    return {row.category: row.bytes for row in moment.categories}


OWN = frames(("/home/ada/project/own.py", 3, "update"))


def busy(seed: int, device: int = 0, events: int = 400) -> Allocator:
    """Random allocations and frees on two streams."""
    allocator, drawn = Allocator(device), random.Random(seed)
    while len(allocator.events) < events:
        if allocator.live and drawn.random() < 0.48:
            allocator.free(drawn.choice(list(allocator.live)))
        elif drawn.random() < 0.02:
            allocator.release()
        else:
            line = drawn.randrange(5)
            allocator.alloc(drawn.choice((100, 512, 5000, 70_000, 3 * MIB)), forward(line), stream=drawn.randrange(2))
    return allocator


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("last", [None, 150])
def test_levels_and_peak_are_those_of_the_allocator(tmp_path: Path, seed: int, last: int | None) -> None:
    allocator = busy(seed, device=seed % 2)
    path = allocator.write(tmp_path / "s.pickle", last)
    first = 0 if last is None else len(allocator.events) - last
    lifetimes = find_lifetimes(read_snapshot(path), allocator.device)
    assert lifetimes.levels()[1:].tolist() == allocator.levels[first:]
    assert lifetimes.conflicts == 0
    for moment in (0, 40, lifetimes.events - 1):
        alive = lifetimes.alive(moment)
        known = dict(zip(lifetimes.address[alive].tolist(), lifetimes.size_bytes[alive].tolist(), strict=True))
        assert known == allocator.alive_after[first + moment]
    device = device_of(path)
    before = allocator.levels[first - 1] if first else 0
    assert device.peak.allocated_bytes == max(before, *allocator.levels[first:])
    assert device.history.before_bytes == before
    assert device.history.state == ("partial" if before else "whole")
    if last is not None:  # their stacks are known, because the blocks hold them
        again = {event["addr"] for event in allocator.events[first:] if event["action"] == "alloc"}
        old = set(allocator.live) & set(allocator.alive_after[first - 1])
        assert device.history.dropped_stacks == len(old - again)
    assert sum(row.bytes for row in device.peak.categories) == device.peak.allocated_bytes
    assert sum(row.peak_bytes for row in device.groups) == device.peak.allocated_bytes
    assert sum(row.end_bytes for row in device.groups) == device.end.allocated_bytes == allocator.levels[-1]


def test_reserved_memory_is_replayed_from_the_end(tmp_path: Path) -> None:
    allocator = busy(3)
    reserved, now = [0], 0
    for event in allocator.events:
        now += {"segment_alloc": 1, "segment_free": -1}.get(event["action"], 0) * event["size"]
        reserved.append(now)
    snapshot = read_snapshot(allocator.write(tmp_path / "s.pickle"))
    assert replay_reserved(snapshot, 0).tolist() == reserved
    part = read_snapshot(allocator.write(tmp_path / "p.pickle", 100))
    assert replay_reserved(part, 0).tolist() == reserved[-101:]


def test_groups_hold_the_bytes_of_their_lines(tmp_path: Path) -> None:
    allocator = busy(5)
    device = device_of(allocator.write(tmp_path / "s.pickle"))
    expected: Counter[str] = Counter()
    line_of = {}
    for event in allocator.events[: device.peak.event]:
        if event["action"] == "alloc":
            line_of[event["addr"]] = event["frames"][1]["line"]
    for address, size in allocator.alive_after[device.peak.event - 1].items():
        expected[f"project/net.py:{line_of[address]} forward"] += size
    found: Counter[str] = Counter()
    for row in device.groups:
        found[row.line] += row.peak_bytes
    assert +found == +expected


def test_uses_of_a_training_are_found(tmp_path: Path) -> None:
    allocator = Allocator()
    expected = train(allocator, 3)
    device = device_of(allocator.write(tmp_path / "s.pickle"))
    assert categories(device.peak) == expected
    assert device.peak.allocated_bytes == max(allocator.levels)
    assert categories(device.end) == {
        "parameters": 40 * MIB,
        "optimizer_state": 80 * MIB,
    }
    lines = {(row.line, row.category, row.phase): row.peak_bytes for row in device.groups}
    assert lines["autograd MmBackward0", "gradients", "backward"] == 40 * MIB
    assert lines["project/net.py:11 forward", "activations", "forward"] == 10 * MIB
    assert lines["project/net.py:20 forward", "temporaries", "forward"] == 0
    assert device.growth is None


def test_a_leak_is_found_with_its_size_and_line(tmp_path: Path) -> None:
    allocator = Allocator()
    train(allocator, 8, leak_bytes=MIB)
    device = device_of(allocator.write(tmp_path / "s.pickle"))
    growth = device.growth
    assert growth is not None
    # Steps 4 to 7 are compared: the first three are left out, and the last one may be incomplete.
    assert (growth.steps, growth.growth_bytes) == (3, 3 * MIB)
    assert [(row.line, row.growth_bytes) for row in growth.rows] == [("project/net.py:77 forward", 3 * MIB)]


def test_memory_that_rises_and_falls_is_no_leak(tmp_path: Path) -> None:
    allocator = Allocator()
    extra: list[int] = []
    for number in range(10):
        extra.append(allocator.alloc(MIB, forward(1)))
        allocator.free(allocator.alloc(MIB, backward()))
        if number % 4 == 3:
            while extra:
                allocator.free(extra.pop())
    assert device_of(allocator.write(tmp_path / "s.pickle")).growth is None


def test_curve_keeps_the_peak_and_adds_up(tmp_path: Path) -> None:
    allocator = busy(9, events=3000)
    device = device_of(allocator.write(tmp_path / "s.pickle"))
    curve = device.curve
    assert curve is not None
    assert 300 < len(curve.event) < 500
    for areas in (curve.categories, curve.lines):
        total = np.sum([area.bytes for area in areas], axis=0)
        assert total.tolist() == [0 if event == 0 else allocator.levels[event - 1] for event in curve.event]
        assert total.max() == max(allocator.levels)
    assert curve.time_ns is not None
    assert list(curve.time_ns) == sorted(curve.time_ns)


def test_contradicting_events_are_counted(tmp_path: Path) -> None:
    allocator = Allocator()
    address = allocator.alloc(MIB, forward())
    allocator.alloc(2 * MIB, forward())
    allocator.record("alloc", address, MIB, 0, forward())  # its free is missing
    allocator.record("alloc", 4096, MIB, 0, forward())  # there is no such block at the end
    report = build_report(read_snapshot(allocator.write(tmp_path / "s.pickle")), tmp_path)
    assert report.devices[0].history.conflicts == 2
    assert any("contradict" in note for note in report.notes)


def test_stacks_of_python_only_leave_backward_without_a_stack(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.alloc(MIB, forward(1))
    allocator.alloc(MIB, forward(2))
    allocator.alloc(3 * MIB, frames())
    allocator.free(allocator.alloc(MIB, optimizer()))
    report = build_report(read_snapshot(allocator.write(tmp_path / "s.pickle")), tmp_path)
    assert categories(report.devices[0].end) == {"activations": 2 * MIB, "gradients": 3 * MIB}
    assert any("1 allocation without a stack" in note for note in report.notes)


def test_a_range_of_the_optimizer_decides_where_the_stack_does_not(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.alloc(MIB, OWN)
    allocator.annotate("Optimizer.step#Own.step", "START")
    allocator.alloc(2 * MIB, OWN)
    allocator.free(allocator.alloc(3 * MIB, OWN))
    allocator.annotate("Optimizer.step#Own.step", "END")
    allocator.alloc(5 * MIB, OWN)
    device = device_of(allocator.write(tmp_path / "own.pickle"))
    assert categories(device.end) == {"unknown": 6 * MIB, "optimizer_state": 2 * MIB}
    allocator = Allocator()  # Lightning runs a closure with forward and backward inside of the optimizer's step
    allocator.annotate("Optimizer.step#Adam.step", "START")
    for size, stack in enumerate((forward(), OWN, backward()), 1):
        allocator.alloc(size * MIB, stack)
    allocator.annotate("Optimizer.step#Adam.step", "END")
    found = categories(device_of(allocator.write(tmp_path / "closure.pickle")).end)
    assert found == {"activations": MIB, "unknown": 2 * MIB, "gradients": 3 * MIB}
