"""The loss scale of an fp16 run: how it changes, its file format, and the history of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from lightning_perf.analysis.json_lines import read_json_lines

__all__ = [
    "LossScaleHistory",
    "OverflowOrigin",
    "ScaleEvent",
    "ScalerState",
    "encode_event",
    "read_events",
    "summarize_loss_scale",
]


@dataclass(frozen=True)
class ScalerState:
    """The state of a gradient scaler, kept on the host so that nothing waits for the device to learn it.

    Attributes:
        scale: The loss scale.
        steps_since_change: Steps executed since the scale last grew or shrank (torch's growth tracker).
        growth_factor: What the scale is multiplied with after `growth_interval` executed steps in a row.
        backoff_factor: What it is multiplied with after an overflow.
        growth_interval: Executed steps in a row until it grows.
    """

    scale: float
    steps_since_change: int
    growth_factor: float
    backoff_factor: float
    growth_interval: int

    def after(self, *, overflow: bool) -> ScalerState:
        """The state after one more optimizer step was tried.

        The rule is that of ``torch._amp_update_scale_`` (``aten/src/ATen/native/cuda/AmpKernels.cu``): the product is
        rounded to FP32, and a growth that would overflow FP32 is left out.

        Args:
            overflow: Whether a gradient was inf or nan, so that the step was skipped.

        Example:
            >>> state = ScalerState(65536.0, 1999, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000)
            >>> state.after(overflow=False).scale, state.after(overflow=True).scale
            (131072.0, 32768.0)
        """
        if overflow:
            return replace(self, scale=_round_to_fp32(self.scale * self.backoff_factor), steps_since_change=0)
        steps = self.steps_since_change + 1
        if steps < self.growth_interval:
            return replace(self, steps_since_change=steps)
        grown = _round_to_fp32(self.scale * self.growth_factor)
        return replace(self, scale=grown if np.isfinite(grown) else self.scale, steps_since_change=0)


@dataclass(frozen=True)
class OverflowOrigin:
    """Where the first inf or nan of a skipped step came up, as running its batch again shows.

    Attributes:
        module: Name of the layer; empty when it was the loss itself.
        what: Which of its values: its output, or the gradient of its output or of a parameter.
        value: Whether inf or nan.
    """

    module: str
    what: str
    value: Literal["inf", "nan"]


@dataclass(frozen=True)
class ScaleEvent:
    """A change of the loss scale, or the begin or end of a run; between events the scale stays.

    Attributes:
        kind: ``start``, ``overflow`` (the optimizer step was skipped), ``growth`` or ``end``.
        step: Number of the step, on the axis of the Trainer's own logs.
        scale: The scale from here on.
        attempts: Optimizer steps tried so far, skipped ones included.
        trained_ns: Wall time of the training batches so far, waiting for data left out.
        wasted_ns: For an overflow: wall time of the batches whose gradients were thrown away, else 0.
        optimizer: For an overflow: index of the optimizer, else 0.
        scheduler_steps: For an overflow: steps that learning-rate schedulers of this optimizer made all the same.
        steps_since_change: Executed steps since the scale changed, before this event.
        origin: For an overflow: where it came up, if that was looked for and found.
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


@dataclass(frozen=True)
class LossScaleHistory:
    """What became of the loss scale in one run.

    Attributes:
        initial_scale: Scale at the start.
        final_scale: Scale at the end.
        lowest_scale: The lowest it was.
        highest_scale: The highest it was.
        attempts: Optimizer steps tried.
        skipped_steps: Those skipped, one for each overflow.
        growths: Times the scale grew.
        steps_since_change: Executed steps since the scale last changed, at the end.
        scheduler_steps_on_skips: Steps of learning-rate schedulers made although the optimizer's was skipped: the
            schedule is that many steps ahead of the weights.
        trained_ns: Wall time of the training batches, waiting for data left out.
        wasted_ns: The part of it spent on skipped steps.
        finished: Whether the run wrote its end; if not, the figures are those of the last event.
        events: The events, in order.
    """

    initial_scale: float
    final_scale: float
    lowest_scale: float
    highest_scale: float
    attempts: int
    skipped_steps: int
    growths: int
    steps_since_change: int
    scheduler_steps_on_skips: int
    trained_ns: int
    wasted_ns: int
    finished: bool
    events: tuple[ScaleEvent, ...]

    @property
    def executed_steps(self) -> int:
        """Optimizer steps that changed the weights."""
        return self.attempts - self.skipped_steps

    @property
    def goodput(self) -> float:
        """Share of the training time whose gradients were used, 0 to 1."""
        return 1 - self.wasted_ns / self.trained_ns if self.trained_ns else 1.0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ScaleEvent)


def encode_event(event: ScaleEvent) -> bytes:
    """Encode an event as one line of a ``loss_scale.rank0.jsonl`` file, with its newline."""
    return _encoder.encode(event) + b"\n"


def read_events(path: str | Path) -> tuple[ScaleEvent, ...]:
    """Read the loss-scale events of one rank; a line torn by a killed run is left out, what a resumed run adds is not.

    Args:
        path: A ``loss_scale.rank0.jsonl`` file.

    Raises:
        TraceError: The file cannot be read, or a line within it is no event.
    """
    return read_json_lines(path, _decoder.decode, what="loss-scale event", restart=b'{"kind"')


def summarize_loss_scale(events: Sequence[ScaleEvent]) -> LossScaleHistory:
    """Summarise the events of one run.

    Args:
        events: The events of one rank, in order, the start first.

    Raises:
        ValueError: There are no events.

    Example:
        >>> history = summarize_loss_scale([
        ...     ScaleEvent("start", 0, 65536.0, 0, 0),
        ...     ScaleEvent("overflow", 3, 32768.0, 4, 400, wasted_ns=100, scheduler_steps=1),
        ...     ScaleEvent("end", 9, 32768.0, 10, 1000, steps_since_change=6),
        ... ])
        >>> history.skipped_steps, history.executed_steps, history.final_scale, history.goodput
        (1, 9, 32768.0, 0.9)
    """
    if not events:
        raise ValueError("no loss-scale events: the run did not start")
    overflows = [event for event in events if event.kind == "overflow"]
    scales = [event.scale for event in events]
    last = events[-1]
    return LossScaleHistory(
        initial_scale=scales[0],
        final_scale=scales[-1],
        lowest_scale=min(scales),
        highest_scale=max(scales),
        attempts=last.attempts,
        skipped_steps=len(overflows),
        growths=sum(event.kind == "growth" for event in events),
        steps_since_change=last.steps_since_change if last.kind == "end" else 0,
        scheduler_steps_on_skips=sum(event.scheduler_steps for event in overflows),
        trained_ns=last.trained_ns,
        wasted_ns=sum(event.wasted_ns for event in overflows),
        finished=last.kind == "end",
        events=tuple(events),
    )


def _round_to_fp32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))
