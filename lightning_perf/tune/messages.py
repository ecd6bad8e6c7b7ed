"""Messages between the tuner and the worker process of a training."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from lightning_perf.run_files.estimates import Source
from lightning_perf.tune.levers.lever import Lever, Machine, Setting
from lightning_perf.workers.channel import Message
from lightning_perf.workers.script import Script

TrainingSource: TypeAlias = str | Script | bytes
"""Where a training comes from: ``package.module:name``, a script that trains by a Trainer, or torch's flags and a
`Training`, pickled by cloudpickle."""


class Order(Message, frozen=True):
    """The task of a worker process.

    Attributes:
        source: Name of the training, or None.
        script: The script with the training, or None.
        pickled: The pickled training, or None.
        scout: Whether to check which levers apply and to profile a few steps, instead of training in windows.
        copy: Folder of an edited copy of the project, to send its `Arguments` instead; empty without one.
        devices: To train on so many devices, one of them in this process, and to send `Measured` instead; or 0.
        timed_steps: Steps to time then.
    """

    source: str | None
    script: Script | None
    pickled: bytes | None
    levers: tuple[str, ...]
    seed: int
    scout: bool
    folder: str
    copy: str = ""
    devices: int = 0
    timed_steps: int = 0


class Measured(Message, frozen=True):
    """A training on one of several devices has ended, and its files are in the folder of the order."""


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
        workers_save: The same for each lever of worker processes, by the recorded waits.
    """

    predictions: tuple[Prediction, ...] = ()
    note: str | None = None
    step_ms: float | None = None
    probed: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    workers: int | None = None
    workers_save: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)

    def prediction(self, lever: Lever) -> Prediction | None:
        """Return the predicted saving of a lever: the probed one, or that of a finding. Without a finding, no kind."""
        fitting = [prediction for prediction in self.predictions if prediction.kind in lever.addresses]
        found = max(fitting, key=lambda prediction: prediction.high, default=None)
        if found is not None and lever.name in self.workers_save:
            return Prediction(found.kind, *self.workers_save[lever.name], found.source)
        if lever.name not in self.probed:
            return found
        low, high = self.probed[lever.name]
        return Prediction(found.kind if found is not None else "", low, high, "probed")


class Site(msgspec.Struct, frozen=True):
    """A call in the user's files that made an object of the training.

    Attributes:
        path: The file, absolute.
        column: First column of the call in bytes, and `end_column` the one after it; None if unknown (Python 3.10).
        name: Class of the object, or ``fit``.
        parameters: Names of the parameters that may be given by position, in order.
        makes_others: Whether the call makes other objects, too, or may.
    """

    path: str
    line: int
    name: str
    parameters: tuple[str, ...] = ()
    makes_others: bool = False
    end_line: int | None = None
    column: int | None = None
    end_column: int | None = None


class Arguments(Message, frozen=True):
    """The simple arguments of the Trainer and of the loader that the training got, by the place of a `Setting`."""

    values: dict[str, dict[str, bool | int | float | str | None]]


class Scouted(Message, frozen=True):
    """The result of the scout.

    Attributes:
        missing: For each lever, why it does not apply, or None.
        settings: For each lever that applies, the settings for the user's code.
        network: Class and number of parameters of the model.
        sites: The calls that take settings, by the place of a `Setting`. Where no file of the user's has the call, the
            function that made the object.
        files: The project's Python files that are loaded, and the YAML files that the script has read.
        arguments: The simple arguments of the calls.
        parameters: By the place of a `Setting`, the parameters of each class that may pass them on, e.g. a data module.
        refused: A file that makes LightningCLI refuse to run the script; empty without one.
    """

    machine: Machine
    missing: dict[str, str | None]
    settings: dict[str, tuple[Setting, ...]]
    profile: Profile
    network: str = ""
    sites: dict[str, tuple[Site | str, ...]] = msgspec.field(default_factory=dict)
    files: tuple[str, ...] = ()
    arguments: Arguments = Arguments({})
    parameters: dict[str, tuple[tuple[str, ...], ...]] = msgspec.field(default_factory=dict)
    refused: str = ""


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
        workers: Worker processes of the DataLoader, and others that the training has started.
        longest_s: Wall time of the longest step.
    """

    seconds: float
    steps: int
    samples: int | None
    losses: tuple[float, ...]
    peak_bytes: int | None = None
    free_bytes: int | None = None
    workers: int = 0
    longest_s: float = 0.0
