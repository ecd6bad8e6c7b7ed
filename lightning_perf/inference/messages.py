"""What the measuring process and its helper processes say to each other: a line of JSON each."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = [
    "BuildOrder",
    "Built",
    "Failed",
    "Predict",
    "Predicted",
    "Ready",
    "Reply",
    "Request",
    "Time",
    "Timed",
    "WorkOrder",
]


class BuildOrder(msgspec.Struct, frozen=True):
    """Build one variant: all that `lightning_perf.inference.build_process` needs.

    Paths of the pickled `Subject`, of the folder to fill, and of the ``.npy`` file for its outputs on the subject's
    inputs; then what `Origin` holds.
    """

    subject: str
    folder: str
    outputs: str
    variant: str
    runtime: str
    transforms: tuple[str, ...]
    source: str
    labels: tuple[str, ...]


class Built(msgspec.Struct, frozen=True, tag="built"):
    """The artefact is complete."""

    seconds: float


class WorkOrder(msgspec.Struct, frozen=True):
    """Load one artefact and run what is asked for: all that `lightning_perf.inference.worker` needs to start."""

    folder: str
    device: str
    threads: int
    inputs: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """It is loaded and has run once, on one input; what memory that took, None where the system does not tell."""

    load_ms: float
    first_call_ms: float
    peak_rss_bytes: int | None
    peak_device_bytes: int | None


class Predict(msgspec.Struct, frozen=True, tag="predict"):
    """Run all inputs of a ``.npy`` file and write the outputs to another."""

    inputs: str
    outputs: str


class Predicted(msgspec.Struct, frozen=True, tag="predicted"):
    """The outputs are written."""


class Time(msgspec.Struct, frozen=True, tag="time"):
    """Time calls with a batch of this size: after untimed ones, until so much time is over and so many are done."""

    batch: int
    warmup: int
    seconds: float
    least: int
    most: int


class Timed(msgspec.Struct, frozen=True, tag="timed"):
    """Each call's wall time, process CPU time, and time on the device between events (CUDA only)."""

    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    device_ns: tuple[int, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot go on."""

    reason: str


Request: TypeAlias = Predict | Time
Reply: TypeAlias = Built | Ready | Predicted | Timed | Failed
