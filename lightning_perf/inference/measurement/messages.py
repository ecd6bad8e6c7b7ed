"""Messages between the measuring process and the worker processes that build and run variants."""

from __future__ import annotations

from lightning_perf.workers.channel import Message

__all__ = ["BuildOrder", "Built", "Predict", "Predicted", "Ready", "Time", "Timed", "WorkOrder"]


class BuildOrder(Message, frozen=True):
    """Ask a worker process to build one variant (`lightning_perf.inference.variants.worker.build`).

    The first three fields are paths: the pickled `Subject`, the folder to fill, and the ``.npy`` file for the variant's
    outputs on the subject's inputs. The others are the fields of `Origin`.
    """

    subject: str
    folder: str
    outputs: str
    variant: str
    runtime: str
    transforms: tuple[str, ...]
    source: str
    labels: tuple[str, ...]


class Built(Message, frozen=True):
    """The artefact is complete."""

    seconds: float


class WorkOrder(Message, frozen=True):
    """Ask a worker process to load one artefact and to answer requests (`variants.worker.run`)."""

    folder: str
    device: str
    threads: int
    inputs: str


class Ready(Message, frozen=True):
    """The artefact is loaded and has run once, on one input. Memory may be None: not all systems report it."""

    load_ms: float
    first_call_ms: float
    peak_rss_bytes: int | None
    peak_device_bytes: int | None


class Predict(Message, frozen=True):
    """Run all inputs of a ``.npy`` file and write the outputs to another."""

    inputs: str
    outputs: str


class Predicted(Message, frozen=True):
    """The outputs are written."""


class Time(Message, frozen=True):
    """Time calls with a batch of this size, after some untimed ones, for at least this long and this many calls."""

    batch: int
    warmup: int
    seconds: float
    least: int
    most: int


class Timed(Message, frozen=True):
    """Wall time, process CPU time and device time between events (CUDA only) of each call."""

    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    device_ns: tuple[int, ...]
