"""The state of a fit that its observers share, and its training loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.run_files.jsonl import LogWriter, RankLog

if TYPE_CHECKING:
    import torch

    from lightning_perf.callbacks.steps.lightning_hooks import HookTimes


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
        own_passes: Whether a monitor has run a batch or a layer again since the step began. Monitors set it.

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
    own_passes: bool = False

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


class TrainingLoop(Protocol):
    """A training loop, at the start of training: that of a Trainer, or one without a Trainer.

    Attributes:
        name: The class that the user sees, for messages.
        log_every: Steps between two rows of the loggers; 0 without loggers.
        profiler: The Trainer's profiler, which it calls around every action; None without a Trainer.
        model: The model; None if it is not known.
        hook_times: A timer of hooks; None in a loop without hooks.
        nodes: Machines that it runs on; None if unknown.
        obstacle: Why the profiler cannot record this training, or None.
    """

    name: str
    rank: int
    world_size: int
    nodes: int | None
    device: torch.device
    log_every: int
    profiler: Any
    model: Any
    hook_times: HookTimes | None
    obstacle: str | None

    @property
    def expected_steps(self) -> int | None:
        """Steps that the training will have; None if that is open."""

    @property
    def global_step(self) -> int:
        """Optimizer steps so far."""

    @property
    def automatic(self) -> bool:
        """Whether the count shows every optimizer step, as in automatic optimization."""

    def step_number(self) -> int:
        """Return the number of the current step in the loop's own logs."""

    def validation_batches(self) -> int:
        """Return the batches of validation so far; 0 if the loop does not count them."""

    def loader_iterators(self) -> Sequence[Any]:
        """Return the iterators of torch's loaders that the training fetches from; empty if they are not known."""

    def loader_facts(self) -> dict[str, Any]:
        """Return how batches are made, for the recordings."""

    def product_parameters(self) -> int | None:
        """Return the number of parameters that products use, or None if this process does not hold the whole model."""

    def tensor_source(self) -> tuple[Any, Iterable[Any]]:
        """Return the model, or None if it is not known, and the optimizers."""

    def gpu_uuids(self) -> list[str]:
        """Return NVML's names of the GPUs that this rank watches, its own first."""


@dataclass(frozen=True)
class FitContext:
    """The fit that observers follow. Without `folder` they write no files."""

    loop: TrainingLoop
    folder: Path | None
    errors: ErrorReporter
    state: FitState = field(default_factory=FitState)

    def writer(self, log: RankLog[Any], consequence: str) -> LogWriter[Any]:
        """Return a writer of this rank's log. If a write fails, `consequence` is the loss to the user."""
        path = log.path(self.folder, self.loop.rank) if self.folder is not None else None
        return LogWriter(log, path, self.errors.report, consequence)
