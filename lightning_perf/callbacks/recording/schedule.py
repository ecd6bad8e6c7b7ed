"""When to record: a pure function from the number of a step to what the profiler does in it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum

__all__ = ["Action", "Schedule"]


class Action(Enum):
    """What the profiler does during a step."""

    REST = "rest"
    WARM_UP = "warm up"
    RECORD = "record"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which steps of a fit are recorded; the names mean what they mean in `torch.profiler.schedule`.

    Steps are whole optimizer steps and counted from 0 at the start of the fit. After `skip_first` steps come cycles of
    `wait`, `warmup` and `active` steps.

    Attributes:
        skip_first: Steps before the first cycle.
        wait: Steps at the start of each cycle in which the profiler rests.
        warmup: Steps in which the profiler runs and discards what it sees, since its start distorts the first ones.
        active: Steps recorded in each cycle, into one trace file.
        repeat: Cycles; 0 for as many as the fit has room for.

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
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{item.name} is a number of steps, not {value!r}: give an integer")
            least = 1 if item.name == "active" else 0
            if value < least:
                raise ValueError(f"{item.name}={value} is too small: give {least} or more")

    @property
    def cycle(self) -> int:
        """Steps in a cycle."""
        return self.wait + self.warmup + self.active

    @property
    def first_recorded(self) -> int:
        """The first step that is recorded."""
        return self.skip_first + self.wait + self.warmup

    def action(self, step: int) -> Action:
        """Say what the profiler does in a step.

        Args:
            step: The step, counted from 0 at the start of the fit.

        Returns:
            The action.
        """
        position = self._position(step)
        if position is None or position < self.wait:
            return Action.REST
        return Action.WARM_UP if position < self.wait + self.warmup else Action.RECORD

    def ends_window(self, step: int) -> bool:
        """Whether `step` is the last one of its cycle, after which the trace file is written."""
        return self._position(step) == self.cycle - 1

    def recorded_within(self, steps: int) -> int:
        """Count the steps that are recorded in a fit of `steps` steps.

        Example:
            >>> Schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=0).recorded_within(8)
            3
        """
        if steps <= self.skip_first:
            return 0
        cycles, rest = divmod(steps - self.skip_first, self.cycle)
        if self.repeat and cycles >= self.repeat:
            return self.repeat * self.active
        return cycles * self.active + max(0, rest - self.wait - self.warmup)

    def shortened(self, steps: int, *, skip_first: bool = True, wait: bool = True, warmup: bool = True) -> Schedule:
        """Shorten what comes before the first recorded step until a fit of `steps` steps has room for a window.

        The skipped steps give first, then the wait, then the warm-up; `active` stays, since the recording just ends
        with the fit. One step is left before the window, if there are two: the first step of a fit is like no other.

        Args:
            steps: Steps the fit will have.
            skip_first: Whether `skip_first` may be shortened.
            wait: Whether `wait` may be.
            warmup: Whether `warmup` may be.

        Returns:
            The schedule that fits, or this one where there is nothing to shorten.

        Example:
            >>> Schedule().shortened(7)
            Schedule(skip_first=0, wait=0, warmup=2, active=5, repeat=1)
        """
        missing = self.first_recorded + min(self.active, max(steps - 1, 1)) - steps
        shorter = {}
        for name, allowed in (("skip_first", skip_first), ("wait", wait), ("warmup", warmup)):
            taken = min(getattr(self, name), missing) if allowed and missing > 0 else 0
            missing -= taken
            shorter[name] = getattr(self, name) - taken
        return replace(self, **shorter)

    def _position(self, step: int) -> int | None:
        """The position of a step in its cycle; None outside all cycles."""
        cycles, position = divmod(step - self.skip_first, self.cycle)
        if cycles < 0 or (self.repeat and cycles >= self.repeat):
            return None
        return position
