"""What a trial's process and the tuner say to each other, over a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lightning_perf.tune.lever import Machine

__all__ = ["Answer", "Failed", "Order", "Prediction", "Ready", "Run", "Scouted", "Stop", "Window"]


@dataclass(frozen=True)
class Order:
    """What a process is for: the first thing it reads.

    Attributes:
        source: How to get the training: ``package.module:name``, or what cloudpickle made of it and of torch's flags.
        path: Where the tuner's process imports from.
        levers: Names of the levers to apply.
        seed: Seeds weights and order of samples.
        scout: Whether to look which levers apply and to profile a few steps, instead of training in windows.
        folder: Where profiles go.
    """

    source: str | bytes
    path: tuple[str, ...]
    levers: tuple[str, ...]
    seed: int
    scout: bool
    folder: str


@dataclass(frozen=True)
class Run:
    """Train a window.

    Attributes:
        steps: Optimizer steps.
    """

    steps: int


@dataclass(frozen=True)
class Stop:
    """End the training."""


@dataclass(frozen=True)
class Prediction:
    """A finding of the profile.

    Attributes:
        kind: Its kind.
        low: Least predicted saving as a share of the step.
        high: Most.
    """

    kind: str
    low: float
    high: float


@dataclass(frozen=True)
class Scouted:
    """What the training looks like.

    Attributes:
        machine: Where it runs.
        missing: For each lever why it does not apply, or None.
        lines: For each lever that applies what to write into one's own code.
        predictions: What the profile predicts.
        note: Why there are no predictions, or None.
    """

    machine: Machine
    missing: dict[str, str | None]
    lines: dict[str, tuple[str, ...]]
    predictions: tuple[Prediction, ...]
    note: str | None


@dataclass(frozen=True)
class Ready:
    """The training has begun and waits before its first step."""


@dataclass(frozen=True)
class Window:
    """A window has been trained.

    Attributes:
        seconds: Wall time, until the device had finished.
        steps: Optimizer steps.
        samples: Samples, None where the batches do not tell.
        losses: The loss of each optimizer step, mean of its micro-batches.
    """

    seconds: float
    steps: int
    samples: int | None
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Failed:
    """It went wrong.

    Attributes:
        reason: Why, in a line.
        fault: Of the training or a lever, or that the lever is not for it, or that there is no such training.
    """

    reason: str
    fault: Literal["trial", "not applicable", "no training"] = "trial"


Answer: TypeAlias = Scouted | Ready | Window | Failed
