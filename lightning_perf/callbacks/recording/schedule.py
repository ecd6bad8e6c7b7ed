"""Which steps the profiler records: the schedule, how a short fit shortens it, and captures between its windows."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path

from lightning_perf.callbacks.lightning_compat import Trainer


class Action(Enum):
    """The profiler's action during a step."""

    REST = "rest"
    WARM_UP = "warm up"
    RECORD = "record"


def check_number(name: str, value: object, *, least: int, whole: bool = True) -> None:
    """Check an option that is a number."""
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise TypeError(f"{name} must be a {'whole number' if whole else 'number'}, not {value!r}")
    if not value >= least:
        raise ValueError(f"{name}={value} is too small: give {least} or more")


SHORTENED = ("skip_first", "wait", "warmup")
"""The fields of a schedule that may be shortened, in this order."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which steps of a fit are recorded. The names have the same meaning as in `torch.profiler.schedule`.

    Steps are whole optimizer steps and counted from 0 at the start of the fit. After `skip_first` steps come cycles of
    `wait`, `warmup` and `active` steps. In the warm-up the profiler runs and discards its events, since its start
    distorts the first ones. With `repeat` 0 there are as many cycles as the fit has room for.

    Raises:
        TypeError: A number is not an integer.
        ValueError: A number is negative, or `active` is 0.

    Example:
        >>> schedule = Schedule(skip_first=2, wait=0, warmup=1, active=2, repeat=1)
        >>> [schedule.action(step).value for step in range(6)]
        ['rest', 'rest', 'warm up', 'record', 'record', 'rest']
    """

    skip_first: int = 10
    wait: int = 0
    warmup: int = 3
    active: int = 5
    repeat: int = 1

    def __post_init__(self) -> None:
        for item in fields(self):
            check_number(item.name, getattr(self, item.name), least=1 if item.name == "active" else 0)

    @property
    def cycle(self) -> int:
        """Steps in a cycle."""
        return self.wait + self.warmup + self.active

    @property
    def first_recorded(self) -> int:
        """The first step that is recorded."""
        return self.skip_first + self.wait + self.warmup

    def action(self, step: int) -> Action:
        """Return the profiler's action in a step."""
        position = self._position(step)
        if position is None or position < self.wait:
            return Action.REST
        return Action.WARM_UP if position < self.wait + self.warmup else Action.RECORD

    def ends_window(self, step: int) -> bool:
        """Whether `step` is the last one of its cycle, after which the trace file is written."""
        return self._position(step) == self.cycle - 1

    def next_window(self, step: int) -> float:
        """Return the first step from `step` on in which the profiler does not rest; infinity without one.

        Example:
            >>> schedule = Schedule(skip_first=2, wait=3, warmup=1, active=2, repeat=2)
            >>> [schedule.next_window(step) for step in (0, 4, 6, 8, 14)]
            [5, 5, 6, 11, inf]
        """
        position = self._position(step) if step >= self.skip_first else step - self.skip_first
        return math.inf if position is None else step + max(0, self.wait - position)

    def recorded_within(self, steps: int) -> int:
        """Count the steps that are recorded in a fit of `steps` steps."""
        if steps <= self.skip_first:
            return 0
        cycles, rest = divmod(steps - self.skip_first, self.cycle)
        if self.repeat and cycles >= self.repeat:
            return self.repeat * self.active
        return cycles * self.active + max(0, rest - self.wait - self.warmup)

    def shortened(self, steps: int, names: Collection[str] = SHORTENED) -> Schedule:
        """Shorten the steps before the first recorded one until a fit of `steps` steps has room for a window.

        The skipped steps give first, then the wait, then the warm-up; `active` stays, since the recording just ends
        with the fit. One step is left before the window, if there are two: the first step of a fit is like no other.
        """
        missing = self.first_recorded + min(self.active, max(steps - 1, 1)) - steps
        shorter = {}
        for name in SHORTENED:
            taken = min(getattr(self, name), missing) if name in names and missing > 0 else 0
            missing -= taken
            shorter[name] = getattr(self, name) - taken
        return replace(self, **shorter)

    def _position(self, step: int) -> int | None:
        """The position of a step in its cycle; None outside all cycles."""
        cycles, position = divmod(step - self.skip_first, self.cycle)
        if cycles < 0 or (self.repeat and cycles >= self.repeat):
            return None
        return position


def expected_steps(trainer: Trainer) -> int | None:
    """Estimate the whole steps that a fit still has before it; None when that is open."""
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
    """Shorten a schedule for a fit that is too short for it."""
    if steps is None:
        return schedule, None
    shorter = schedule.shortened(steps, chosen)
    changes = [
        f"{name}={getattr(shorter, name)} instead of {getattr(schedule, name)}"
        for name in SHORTENED
        if getattr(shorter, name) != getattr(schedule, name)
    ]
    if not changes or not shorter.recorded_within(steps):  # where even then nothing is recorded, that is what to say
        return schedule, None
    return shorter, f"Shortened for a fit of {_count(steps)}: {', '.join(changes)}."


def recording_notes(schedule: Schedule, steps: int, recorded: int, *, foreign_profiler: bool = False) -> list[str]:
    """Return a line on the part of the schedule that was not recorded, and the reason."""
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


class WindowPlan:
    """A schedule to which captures can be added during the fit."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self.schedule = schedule
        self._folder = folder
        self._capture = Schedule(repeat=1, skip_first=0, active=1, warmup=0)
        self._name = ""  # of the capture; empty before the first

    def capture(self, start: int, *, warmup: int, active: int, folder: str) -> bool:
        """Add a capture from a step on that has not begun; return whether no other window lies in the way."""
        # The step before has not ended yet where this is called: its capture must not be replaced under it.
        if self._name and start <= self._capture.skip_first + self._capture.cycle:
            return False
        if any(self.schedule.action(step) is not Action.REST for step in range(start, start + warmup + active)):
            return False
        self._capture = Schedule(skip_first=start, wait=0, warmup=warmup, active=active, repeat=1)
        self._name = folder
        return True

    def action(self, step: int) -> Action:
        """Return the profiler's action in a step."""
        return self._of(step).action(step)

    def next_window(self, step: int) -> float:
        """Return the first step from `step` on that is in a window of the schedule; infinity without one."""
        return self.schedule.next_window(step)

    def ends_window(self, step: int) -> bool:
        """Whether `step` is the last one of its window."""
        return self._of(step).ends_window(step)

    def capture_at(self, step: int) -> str:
        """Name of the capture that a step belongs to; empty for one of the schedule."""
        return self._name if self._of(step) is self._capture else ""

    def folder_for(self, capture: str) -> Path:
        """The folder of a capture, or of the run for an empty name; it is made if need be."""
        folder = self._folder / capture
        folder.mkdir(exist_ok=True)
        return folder

    def _of(self, step: int) -> Schedule:
        captured = self._name and self._capture.action(step) is not Action.REST
        return self._capture if captured else self.schedule
