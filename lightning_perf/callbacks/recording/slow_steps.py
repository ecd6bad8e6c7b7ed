"""Slow steps: what counts as one, told from step times alone."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from statistics import median

from lightning_perf.run_files.captures import Slowdown

__all__ = ["CaptureOptions", "SlowStepDetector", "capture_config"]

LEAST_HISTORY = 20
"""Steps from which on a median and a spread say anything."""

LIMIT_EVERY = 10
"""Steps between two calculations of the limit, which costs some 10 µs: a median over a hundred hardly moves in ten."""

MAD_TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """When slow steps are captured, and how much of them.

    A step is slow when it takes longer than ``median + max(deviations * 1.4826 * MAD, min_excess * median)`` of the
    last `history` steps (MAD: median absolute deviation from the median). When `sustained` steps in a row are slow, the
    next ones are recorded into a folder of their own, ``slow-step-120``. What lasts for more than half of `history` is
    the new usual. Not judged are steps in which the profiler runs or a checkpoint is saved, and the first step after
    validation, an epoch's end or a window.

    Attributes:
        deviations: Standard deviations, estimated by the MAD, from which on a step is slow.
        min_excess: A step within this part of the median is never slow, however quiet the run.
        history: Steps that the median is over.
        sustained: Slow steps in a row that start a capture.
        warmup: Steps in which the profiler runs but keeps nothing.
        active: Steps recorded in a capture.
        cooldown: Steps after a capture in which none is started.
        max_captures: Captures of slow steps in a fit, for each rank.
        max_bytes: No further capture is started, on demand neither, once this rank's captures take this much of the
            disk.
        on_file: Capture also when a file ``profile-now`` appears in the run's folder. It is looked for once a second,
            and deleted when it is taken; with many ranks, rank 0 takes it for all.
        on_signal: Capture also on SIGUSR2, on the process that gets it.

    Raises:
        TypeError: A number has the wrong type.
        ValueError: A number is too small, or `history` is shorter than 20 steps.
    """

    deviations: float = 6.0
    min_excess: float = 0.25
    history: int = 100
    sustained: int = 3
    warmup: int = 1
    active: int = 3
    cooldown: int = 100
    max_captures: int = 3
    max_bytes: int = 512 * 2**20
    on_file: bool = True
    on_signal: bool = False

    def __post_init__(self) -> None:
        least = {"history": LEAST_HISTORY, "sustained": 1, "active": 1}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("on_file", "on_signal"):
                if not isinstance(value, bool):
                    raise TypeError(f"{item.name} is True or False, not {value!r}")
                continue
            whole = item.name not in ("deviations", "min_excess")
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise TypeError(f"{item.name} is a {'whole number' if whole else 'number'}, not {value!r}")
            if not value >= least.get(item.name, 0):
                raise ValueError(f"{item.name}={value} is too small: give {least.get(item.name, 0)} or more")


def capture_config(given: CaptureOptions | bool) -> CaptureOptions | None:
    """The configuration behind ``PerfCallback(capture_slow_steps=…)``: the defaults for True, None for False.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(given, bool):
        return CaptureOptions() if given else None
    if not isinstance(given, CaptureOptions):
        raise TypeError(f"capture_slow_steps is True, False or a CaptureOptions, not {given!r}")
    return given


class SlowStepDetector:
    """Judges one step after the other. Slow steps enter the history too, once their row has ended.

    Args:
        config: What counts as slow.

    Example:
        >>> detector = SlowStepDetector(CaptureOptions(sustained=2))
        >>> [detector.add(step_ns) for step_ns in [100] * 30 + [200]][-1] is None
        True
        >>> detector.add(210)
        Slowdown(usual_ns=100, limit_ns=125, step_ns=(200, 210))
    """

    def __init__(self, config: CaptureOptions) -> None:
        self._config = config
        self._history: deque[int] = deque(maxlen=config.history)
        self._row: list[int] = []
        self._usual_ns = 0
        self._limit_ns: int | None = None
        self._age = 0

    def add(self, step_ns: int) -> Slowdown | None:
        """Judge a step.

        Args:
            step_ns: Its wall time.

        Returns:
            The slow steps, if this one makes their row long enough; the next row begins anew.
        """
        if self._limit_ns is None or step_ns <= self._limit_ns:
            if self._row:
                self._end_row()
            self._history.append(step_ns)
            self._age += 1
            if self._age >= LIMIT_EVERY and len(self._history) >= LEAST_HISTORY:
                self._set_limit()
            return None
        self._row.append(step_ns)
        if len(self._row) < self._config.sustained:
            return None
        found = Slowdown(self._usual_ns, self._limit_ns, tuple(self._row))
        self._end_row()
        return found

    def _end_row(self) -> None:
        self._history += self._row
        self._row = []
        self._set_limit()

    def _set_limit(self) -> None:
        usual = median(self._history)
        deviation = MAD_TO_DEVIATION * median(abs(step_ns - usual) for step_ns in self._history)
        self._usual_ns = round(usual)
        self._limit_ns = round(usual + max(self._config.deviations * deviation, self._config.min_excess * usual))
        self._age = 0
