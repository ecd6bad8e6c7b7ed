"""Messages between the tuner and the worker process of a training."""

from __future__ import annotations

import msgspec

from lightning_perf.run_files.estimates import Source
from lightning_perf.tune.levers.lever import Lever, Machine
from lightning_perf.workers.channel import Message


class Order(Message, frozen=True):
    """The task of a worker process.

    Attributes:
        source: Name of the training, ``package.module:name``; None for one in `pickled`.
        pickled: Torch's flags and the training, pickled by cloudpickle; None for one that `source` names.
        scout: Whether to check which levers apply and to profile a few steps, instead of training in windows.
    """

    source: str | None
    pickled: bytes | None
    levers: tuple[str, ...]
    seed: int
    scout: bool
    folder: str


class Run(Message, frozen=True):
    """Train a window of some optimizer steps."""

    steps: int


class Prediction(Message, frozen=True):
    """A finding of the profile, with its least and most predicted saving as shares of the step."""

    kind: str
    low: float
    high: float
    source: Source = "general"


class Profile(Message, frozen=True):
    """The result of profiling a few steps.

    Attributes:
        note: Why there are no predictions, or None.
        workers: Worker processes that keep up with the steps; None if unknown.
        step_ms: Median step time without the profiler, a first figure; None if no step was timed.
        probed: For each lever that a probe of the recorded operators covers, the least and the most saving as a share
            of the step; negative for a loss.
    """

    predictions: tuple[Prediction, ...] = ()
    note: str | None = None
    step_ms: float | None = None
    probed: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    workers: int | None = None

    def prediction(self, lever: Lever) -> Prediction | None:
        """Return the predicted saving of a lever: the probed one, or that of a finding. Without a finding, no kind."""
        fitting = [prediction for prediction in self.predictions if prediction.kind in lever.addresses]
        found = max(fitting, key=lambda prediction: prediction.high, default=None)
        if lever.name not in self.probed:
            return found
        low, high = self.probed[lever.name]
        return Prediction(found.kind if found is not None else "", low, high, "probed")


class Scouted(Message, frozen=True):
    """The result of the scout.

    Attributes:
        missing: For each lever, why it does not apply, or None.
        lines: For each lever that applies, the lines for the user's code.
        network: Class and number of parameters of the model.
    """

    machine: Machine
    missing: dict[str, str | None]
    lines: dict[str, tuple[str, ...]]
    profile: Profile
    network: str = ""


class Ready(Message, frozen=True):
    """The training has begun and waits before its first step."""


class Window(Message, frozen=True):
    """A window has been trained.

    Attributes:
        seconds: Wall time, until the device had finished.
        samples: None if the batches do not tell.
        losses: The loss of each optimizer step, mean of its micro-batches.
        peak_bytes: The most device memory that the process has held; None if the device does not tell.
        free_bytes: Device memory that is free beyond that; None if the device does not tell.
    """

    seconds: float
    steps: int
    samples: int | None
    losses: tuple[float, ...]
    peak_bytes: int | None = None
    free_bytes: int | None = None
