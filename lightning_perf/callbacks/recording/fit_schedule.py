"""A schedule and a fit: how many steps there will be, what is shortened for a short one, what was missed in the end."""

from __future__ import annotations

import math
from collections.abc import Collection

from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.callbacks.recording.schedule import Schedule

__all__ = ["expected_steps", "fit_schedule", "recording_notes"]


def expected_steps(trainer: Trainer) -> int | None:
    """Estimate the whole steps that a fit still has before it; None when that is open.

    Args:
        trainer: The Trainer, at the start of training.
    """
    limits = []
    batches = trainer.num_training_batches
    if trainer.max_epochs is not None and trainer.max_epochs != -1 and batches != math.inf:
        epochs = max(trainer.max_epochs - trainer.current_epoch, 0)
        whole = epochs * math.ceil(batches / trainer.accumulate_grad_batches)
        limits.append(whole - _batches_done(trainer) // trainer.accumulate_grad_batches if epochs else 0)
    if trainer.max_steps != -1:
        # The Trainer counts each optimizer's steps; in manual optimization one of ours usually holds one of each.
        optimizers = 1 if trainer.lightning_module.automatic_optimization else max(len(trainer.optimizers), 1)
        limits.append(math.ceil(max(trainer.max_steps - trainer.global_step, 0) / optimizers))
    return min(limits, default=None)


def fit_schedule(schedule: Schedule, chosen: Collection[str], steps: int | None) -> tuple[Schedule, str | None]:
    """Shorten a schedule for a fit that is too short for it.

    Args:
        schedule: The schedule.
        chosen: Its fields that may be shortened.
        steps: Steps of the fit, None when unknown.

    Returns:
        The schedule to use, and a line that says what was shortened.

    Example:
        >>> fit_schedule(Schedule(), {"skip_first", "warmup"}, 7)[1]
        'Shortened for a fit of 7 steps: skip_first=0 instead of 10, warmup=2 instead of 3.'
    """
    if steps is None:
        return schedule, None
    names = ("skip_first", "wait", "warmup")
    shorter = schedule.shortened(steps, **{name: name in chosen for name in names})
    changes = [
        f"{name}={getattr(shorter, name)} instead of {getattr(schedule, name)}"
        for name in names
        if getattr(shorter, name) != getattr(schedule, name)
    ]
    if not changes or not shorter.recorded_within(steps):  # where even then nothing is recorded, that is what to say
        return schedule, None
    return shorter, f"Shortened for a fit of {_count(steps)}: {', '.join(changes)}."


def recording_notes(schedule: Schedule, steps: int, recorded: int, *, foreign_profiler: bool = False) -> list[str]:
    """Say in a line what of the schedule was not recorded, and why.

    Args:
        schedule: The schedule that was in force.
        steps: Whole steps of the fit.
        recorded: Whole steps recorded.
        foreign_profiler: Whether another profiler was in the way.

    Returns:
        No line when everything was recorded.

    Example:
        >>> recording_notes(Schedule(skip_first=0, warmup=1, active=3), steps=3, recorded=2)
        ['Recorded 2 of 3 steps: training ended after 3 steps, the schedule needs 4.']
    """
    planned = schedule.active * (schedule.repeat or 1)
    if recorded >= planned:
        return []
    if foreign_profiler:
        why = "another torch.profiler was recording, and two at a time empty each other"
    elif schedule.recorded_within(steps) > recorded:
        why = "validation or the end of an epoch came in the middle of a step, or its trace was lost"
    else:
        needed = schedule.skip_first + schedule.cycle * (schedule.repeat or 1)
        why = f"training ended after {_count(steps)}, the schedule needs {needed}"
    return [f"Recorded {recorded} of {_count(planned)}: {why}."]


def _batches_done(trainer: Trainer) -> int:
    """Batches of the epoch under way that a checkpoint has behind it."""
    loop = trainer.fit_loop
    if not getattr(loop, "restarted_mid_epoch", False):
        return 0
    done = int(loop.epoch_loop.batch_progress.current.ready)
    # Of a checkpoint made when an epoch's last batch ended, Lightning counts the epoch as done.
    return 0 if done >= trainer.num_training_batches and loop.epoch_loop.restarted_on_train_batch_end else done


def _count(steps: int) -> str:
    return f"{steps} step" if steps == 1 else f"{steps} steps"
