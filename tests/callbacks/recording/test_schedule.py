"""The schedule against `torch.profiler.schedule`, and against counting."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.callbacks.recording.schedule import (
    Action,
    Schedule,
    WindowPlan,
    expected_steps,
    fit_schedule,
    recording_notes,
)

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
    assert schedule.shortened(4, ("wait", "warmup")) == Schedule(skip_first=10, warmup=0)  # and records nothing
    assert schedule.shortened(4, ("skip_first", "wait")) == Schedule(skip_first=0, warmup=3)


@pytest.mark.parametrize("name", ["skip_first", "wait", "warmup", "active", "repeat"])
def test_bad_numbers_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=-1"):
        Schedule(**{name: -1})
    values: tuple[Any, ...] = (2.0, "3", True, None)
    for value in values:
        with pytest.raises(TypeError, match=name):
            Schedule(**{name: value})
    with pytest.raises(ValueError, match="active=0"):
        Schedule(active=0)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"num_training_batches": 10, "max_epochs": 3}, 30),
        ({"num_training_batches": 10, "max_epochs": 3, "accumulate_grad_batches": 4}, 9),
        ({"num_training_batches": 10, "max_epochs": 3, "current_epoch": 2}, 10),
        ({"num_training_batches": 10, "max_epochs": 3, "max_steps": 12}, 12),
        ({"num_training_batches": 10, "max_epochs": -1, "max_steps": 12, "global_step": 5}, 7),
        ({"num_training_batches": math.inf, "max_epochs": -1, "max_steps": 9, "manual_optimizers": 2}, 5),
        ({"num_training_batches": math.inf, "max_epochs": 3}, None),
        ({"num_training_batches": math.inf, "max_epochs": 3, "max_steps": 4}, 4),
        ({"num_training_batches": 10, "max_epochs": -1}, None),
        ({"num_training_batches": 10, "max_epochs": None, "max_steps": 4, "global_step": 9}, 0),
        ({"num_training_batches": 10, "max_epochs": 2, "batches_done": 4}, 16),
        ({"num_training_batches": 10, "max_epochs": 2, "batches_done": 4, "accumulate_grad_batches": 4}, 5),
        ({"num_training_batches": 10, "max_epochs": 2, "current_epoch": 1, "batches_done": 10}, 10),
        ({"num_training_batches": 10, "max_epochs": 2, "batches_done": 10, "after_validation": True}, 10),
        ({"num_training_batches": 10, "max_epochs": 2, "current_epoch": 2, "batches_done": 4}, 0),
    ],
)
def test_expected_steps(settings: dict[str, Any], steps: int | None) -> None:
    defaults = {"accumulate_grad_batches": 1, "current_epoch": 0, "global_step": 0, "max_steps": -1}
    settings = dict(settings)
    optimizers = settings.pop("manual_optimizers", 0)
    done = settings.pop("batches_done", None)
    epoch_loop = SimpleNamespace(
        batch_progress=SimpleNamespace(current=SimpleNamespace(ready=done)),
        restarted_on_train_batch_end=not settings.pop("after_validation", False),
    )
    trainer = SimpleNamespace(
        **{**defaults, **settings},
        lightning_module=SimpleNamespace(automatic_optimization=not optimizers),
        optimizers=[object()] * optimizers,
        fit_loop=SimpleNamespace(restarted_mid_epoch=done is not None, epoch_loop=epoch_loop),
    )
    assert expected_steps(trainer) == steps


ALL = {"skip_first", "wait", "warmup"}


@pytest.mark.parametrize(
    ("schedule", "chosen", "steps", "shorter", "note"),
    [
        *((Schedule(), ALL, steps, Schedule(), None) for steps in (None, 18, 1000)),
        (Schedule(), {"warmup"}, 16, Schedule(warmup=1), "a fit of 16 steps: warmup=1 instead of 3."),
        (Schedule(skip_first=5), {"warmup"}, 3, Schedule(skip_first=5), None),  # it cannot be shortened enough
    ],
)
def test_only_what_was_chosen_is_shortened_and_said(
    schedule: Schedule, chosen: set[str], steps: int | None, shorter: Schedule, note: str | None
) -> None:
    assert fit_schedule(schedule, chosen, steps) == (shorter, note and f"Shortened for {note}")


@pytest.mark.parametrize(
    ("schedule", "steps", "recorded", "note"),
    [
        (Schedule(), 18, 5, None),
        (Schedule(repeat=0), 18, 5, None),
        (Schedule(), 1, 0, "Recorded 0 of 5 steps: training ended after 1 step, the schedule needs 18."),
        (Schedule(active=1), 0, 0, "Recorded 0 of 1 step: training ended after 0 steps, the schedule needs 14."),
        (
            Schedule(wait=1, repeat=2),
            20,
            6,
            "Recorded 6 of 10 steps: training ended after 20 steps, the schedule needs 28.",
        ),
    ],
)
def test_what_was_not_recorded_is_said_in_a_line(
    schedule: Schedule, steps: int, recorded: int, note: str | None
) -> None:
    assert recording_notes(schedule, steps, recorded) == ([f"Recorded {note}"] if note else [])


def test_other_reasons() -> None:
    (cut,) = recording_notes(Schedule(), 18, 4)
    assert "in the middle of a step" in cut
    (foreign,) = recording_notes(Schedule(), 18, 0, foreign_profiler=True)
    assert "another torch.profiler" in foreign


def plan(folder: Path = Path(), **schedule: int) -> WindowPlan:
    return WindowPlan(
        Schedule(**{"skip_first": 4, "wait": 0, "warmup": 1, "active": 2, "repeat": 1, **schedule}), folder
    )


def actions(plan: WindowPlan, steps: int) -> str:
    letters = {Action.REST: ".", Action.WARM_UP: "w", Action.RECORD: "r"}
    return "".join(letters[plan.action(step)] for step in range(steps))


def test_a_capture_comes_between_and_the_schedule_goes_on() -> None:
    each = plan()
    assert actions(each, 9) == "....wrr.."
    assert [step for step in range(9) if each.ends_window(step)] == [6]
    assert each.capture(0, warmup=1, active=2, folder="slow-step-0")
    assert actions(each, 9) == "wrr.wrr.."
    assert [step for step in range(9) if each.ends_window(step)] == [2, 6]
    assert [each.capture_at(step) for step in (0, 2, 3, 5)] == ["slow-step-0", "slow-step-0", "", ""]


def test_a_capture_never_shares_a_step_with_another_window() -> None:
    each = plan()
    for start in (2, 3, 4, 6):
        assert not each.capture(start, warmup=1, active=2, folder="x")
    assert actions(each, 9) == "....wrr.."
    assert each.capture(7, warmup=0, active=2, folder="a")
    for start in (7, 8, 9):  # 9 is refused too: asked for while step 8 is open, it would take its window away
        assert not each.capture(start, warmup=0, active=1, folder="b")
    assert each.capture(10, warmup=0, active=1, folder="b")


def test_an_endless_schedule_without_rest_leaves_no_room() -> None:
    each = plan(skip_first=0, warmup=0, repeat=0)
    assert not any(each.capture(start, warmup=1, active=1, folder="x") for start in range(20))


def test_a_captures_folder_is_made_when_it_is_needed(tmp_path: Path) -> None:
    each = plan(tmp_path)
    assert each.folder_for("") == tmp_path
    assert list(tmp_path.iterdir()) == []
    assert each.folder_for("slow-step-7") == tmp_path / "slow-step-7"
    assert (tmp_path / "slow-step-7").is_dir()
