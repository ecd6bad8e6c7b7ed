"""Marks in a trace: the range of a step, and in it that of a phase."""

from __future__ import annotations

from torch.profiler import record_function

from lightning_perf.callbacks.steps.phases import Phase
from lightning_perf.trace.steps import CUT_MARK

__all__ = ["StepMarks"]


class StepMarks:
    """Opens and closes the range of one step, ``ProfilerStep#n``, and of one phase at a time inside it."""

    def __init__(self) -> None:
        self._step: record_function | None = None
        self._phase: record_function | None = None

    def begin_step(self, number: int) -> None:
        """Open the range of a step."""
        self._step = _entered(f"ProfilerStep#{number}")

    def begin_phase(self, phase: Phase) -> None:
        """Open the range of a phase."""
        self._phase = _entered(phase.value)

    def end_phase(self) -> None:
        """Close the range of the phase that is open, if one is."""
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
            self._phase = None

    def cut(self) -> None:
        """Mark the step that is open, if one is, as cut off."""
        if self._step is not None:
            with record_function(CUT_MARK):
                pass

    def end(self) -> None:
        """Close what is open."""
        self.end_phase()
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


def _entered(name: str) -> record_function:
    mark = record_function(name)
    mark.__enter__()  # type: ignore[no-untyped-call]
    return mark
