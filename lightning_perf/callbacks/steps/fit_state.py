"""The state of a fit that its observers share, and the hooks with which they follow its steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Phase(Enum):
    """A part of a training step; the value is the name of its range in the trace."""

    FETCH = "perf::fetch"
    TRANSFER = "perf::transfer"
    FORWARD = "perf::forward"
    BACKWARD = "perf::backward"
    OPTIMIZER = "perf::optimizer"
    CHECKPOINT = "perf::checkpoint"

    # Members are singletons. Enum's own hash is a Python function, called several times in each action of a step.
    __hash__ = object.__hash__


class Signal(Enum):
    """The position in the training loop that a call of the Trainer's profiler implies."""

    FETCH = "the next batch is fetched"
    TRANSFER = "the batch is moved to the device"
    FORWARD = "training_step runs"
    AUTOMATIC_STEP = "optimizer_step runs, with forward and backward inside"
    MANUAL_STEP = "an optimizer steps in manual optimization"
    ZERO_GRAD = "gradients are zeroed"
    CHECKPOINT = "a checkpoint is saved"
    VALIDATION = "validation begins"
    EPOCH = "an epoch of training batches runs"

    __hash__ = object.__hash__


@dataclass(slots=True)
class FitState:
    """The position of a fit. The step tracker and the window profiler write it, everything else reads it.

    Attributes:
        step: Index of the open step, or of the last one between two steps, counted from 0 at the start of the fit.
        first_number: Number of step 0 in the Trainer's own logs; a resumed fit starts where its checkpoint stopped.
            Known once the first step is open.
        in_step: Whether a step runs: not between two steps, and not while validation interrupts one.
        profiling: Whether the profiler warms up or records.

    Example:
        >>> state = FitState(first_number=100, step=5)
        >>> state.number, state.number_of(6), state.step_of(106)
        (105, 106, 6)
    """

    step: int = 0
    whole_steps: int = 0
    first_number: int = 0
    checkpoint_saved: bool = False
    in_step: bool = False
    profiling: bool = False
    recording: bool = False

    @property
    def number(self) -> int:
        """Number of the step in the Trainer's own logs."""
        return self.first_number + self.step

    def number_of(self, step: int) -> int:
        """Return the number of a step of this fit in the Trainer's own logs."""
        return self.first_number + step

    def step_of(self, number: int) -> int:
        """Return the step of this fit that has a number in the Trainer's own logs."""
        return number - self.first_number


class Observer:
    """Observes a fit until its end."""

    def stop_waiting(self) -> None:
        """Do not wait for the device any more: it may wait for a rank that is gone."""

    def finish(self) -> None:
        """Training has ended or failed: write the rest."""

    def close(self) -> None:
        """Remove everything that the observer added to torch and to the program. A second call does nothing."""


class StepObserver(Observer):
    """Follows the steps of a fit and their phases. A derived class overrides the hooks that it needs."""

    def on_step_start(self) -> None:
        """The step `FitState.step` starts."""

    def add_batch(self, batch: Any) -> None:
        """The open step trains on a batch."""

    def on_step_end(self) -> None:
        """The step is whole: its optimizer has stepped, and callbacks and logging are done."""

    def on_step_dropped(self) -> None:
        """The step ends before it is whole. If training continues, the next step has the same index."""

    def on_training_pause(self) -> None:
        """Validation starts or the epoch ends: the work until the next step belongs to none, though one may be open."""

    def on_training_resume(self) -> None:
        """Training resumes inside the step that was open at the pause."""

    def on_phase_start(self, phase: Phase) -> None:
        """A phase of the open step starts. Phases never overlap."""

    def on_phase_end(self, phase: Phase) -> None:
        """The phase ends."""
