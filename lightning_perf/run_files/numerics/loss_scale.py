"""``loss_scale.rank0.jsonl``: each change of the loss scale in an fp16 run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightning_perf.run_files.jsonl import RankLog

__all__ = ["SCALE_EVENTS", "OverflowOrigin", "ScaleEvent"]


@dataclass(frozen=True)
class OverflowOrigin:
    """Where the first inf or nan of a skipped step came from; running its batch again shows it.

    Attributes:
        module: Name of the layer; empty when it was the loss itself.
        what: Which of its values it was: its output, or the gradient of its output or of a parameter.
        value: Whether inf or nan.
    """

    module: str
    what: str
    value: Literal["inf", "nan"]


@dataclass(frozen=True)
class ScaleEvent:
    """A change of the loss scale, or the start or end of a run. Between events the scale stays the same.

    Attributes:
        kind: ``start``, ``overflow`` (the optimizer step was skipped), ``growth`` or ``end``.
        step: Number of the step, on the axis of the Trainer's own logs.
        scale: The scale from here on.
        attempts: Optimizer steps tried so far, skipped ones included.
        trained_ns: Wall time of the training batches so far, without the waits for data.
        wasted_ns: For an overflow: wall time of the batches with discarded gradients, else 0.
        optimizer: For an overflow: index of the optimizer, else 0.
        scheduler_steps: For an overflow: steps that the learning-rate schedulers of this optimizer still made.
        steps_since_change: Executed steps since the scale changed, before this event.
        origin: For an overflow: its origin, if that was searched for and found.
    """

    kind: Literal["start", "overflow", "growth", "end"]
    step: int
    scale: float
    attempts: int
    trained_ns: int
    wasted_ns: int = 0
    optimizer: int = 0
    scheduler_steps: int = 0
    steps_since_change: int = 0
    origin: OverflowOrigin | None = None


SCALE_EVENTS: RankLog[ScaleEvent] = RankLog(ScaleEvent, "loss_scale", "loss-scale event", restart=b'{"kind"')
