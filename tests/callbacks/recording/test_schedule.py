"""The schedule against `torch.profiler.schedule`, and against counting."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.callbacks.recording.schedule import Action, Schedule

small = st.integers(0, 4)
schedules = st.builds(
    Schedule, skip_first=small, wait=small, warmup=small, active=st.integers(1, 4), repeat=st.integers(0, 3)
)


@given(schedules)
def test_actions_are_those_of_torch(schedule: Schedule) -> None:
    torchs = torch.profiler.schedule(
        skip_first=schedule.skip_first,
        wait=schedule.wait,
        warmup=max(schedule.warmup, 1),  # torch warns of 0 and means the same
        active=schedule.active,
        repeat=schedule.repeat,
    )
    if not schedule.warmup:
        return
    meant = {"NONE": Action.REST, "WARMUP": Action.WARM_UP, "RECORD": Action.RECORD, "RECORD_AND_SAVE": Action.RECORD}
    for step in range(40):
        action = torchs(step)
        assert schedule.action(step) is meant[action.name]
        assert schedule.ends_window(step) is (action.name == "RECORD_AND_SAVE")


@given(schedules, st.integers(0, 40))
def test_recorded_steps_are_counted(schedule: Schedule, steps: int) -> None:
    assert schedule.recorded_within(steps) == sum(schedule.action(s) is Action.RECORD for s in range(steps))


@given(schedules, st.integers(1, 40))
def test_a_shortened_schedule_records_as_much_as_there_is_room_for(schedule: Schedule, steps: int) -> None:
    shorter = schedule.shortened(steps)
    assert shorter.recorded_within(steps) >= min(schedule.active, max(steps - 1, 1))
    if steps > 1 and schedule.first_recorded:
        assert shorter.first_recorded, "the first step of a fit is like no other"
    assert (shorter.active, shorter.repeat) == (schedule.active, schedule.repeat)
    if schedule.first_recorded + schedule.active <= steps:
        assert shorter == schedule


def test_what_was_given_is_not_shortened() -> None:
    schedule = Schedule(skip_first=10, warmup=3)
    assert schedule.shortened(4, skip_first=False) == Schedule(skip_first=10, warmup=0)  # and records nothing
    assert schedule.shortened(4, warmup=False) == Schedule(skip_first=0, warmup=3)


@pytest.mark.parametrize("name", ["skip_first", "wait", "warmup", "active", "repeat"])
def test_bad_numbers_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=-1"):
        Schedule(**{name: -1})
    for value in (2.0, "3", True, None):
        with pytest.raises(TypeError, match=name):
            Schedule(**{name: value})


def test_a_window_needs_a_step() -> None:
    with pytest.raises(ValueError, match="active=0"):
        Schedule(active=0)
