"""What a fit expects, and what it says about itself."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.callbacks.recording.schedule import Schedule, expected_steps, fit_schedule, recording_notes


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


def test_a_long_or_endless_fit_keeps_the_schedule() -> None:
    for steps in (None, 18, 1000):
        assert fit_schedule(Schedule(), {"skip_first", "wait", "warmup"}, steps) == (Schedule(), None)


def test_only_what_was_chosen_is_shortened_and_said() -> None:
    schedule, note = fit_schedule(Schedule(), {"warmup"}, 16)
    assert schedule == Schedule(warmup=1)
    assert note == "Shortened for a fit of 16 steps: warmup=1 instead of 3."


def test_what_cannot_be_shortened_enough_is_left_alone() -> None:
    assert fit_schedule(Schedule(skip_first=5), {"warmup"}, 3) == (Schedule(skip_first=5), None)


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
    assert recording_notes(schedule, steps, recorded) == ([note] if note else [])


def test_other_reasons() -> None:
    (cut,) = recording_notes(Schedule(), 18, 4)
    assert "in the middle of a step" in cut
    (foreign,) = recording_notes(Schedule(), 18, 0, foreign_profiler=True)
    assert "another torch.profiler" in foreign
