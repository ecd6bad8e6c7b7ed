"""The loss scale of an fp16 run: its rule of change, and the history of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_perf.run_files.numerics.precision import LossScaleHistory
from lightning_perf.run_files.numerics.samples import ScaleEvent


@dataclass(frozen=True)
class ScalerState:
    """The state of a gradient scaler, kept on the host so that reading it does not wait for the device.

    Attributes:
        scale: The loss scale.
        steps_since_change: Steps executed since the scale last grew or shrank (torch's growth tracker).
        growth_factor: The factor of the scale after `growth_interval` executed steps in a row.
        backoff_factor: The factor of the scale after an overflow.
        growth_interval: Executed steps in a row after which the scale grows.
    """

    scale: float
    steps_since_change: int
    growth_factor: float
    backoff_factor: float
    growth_interval: int

    def after(self, *, overflow: bool) -> ScalerState:
        """Return the state after one more optimizer step was tried.

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


def summarize_loss_scale(events: Sequence[ScaleEvent]) -> LossScaleHistory:
    """Summarize the events of one run.

    Args:
        events: The events of one rank, in order, the start first.

    Example:
        >>> history = summarize_loss_scale([
        ...     ScaleEvent("start", 0, 65536.0, 0, 0),
        ...     ScaleEvent("overflow", 3, 32768.0, 4, 400, wasted_ns=100, scheduler_steps=1),
        ...     ScaleEvent("end", 9, 32768.0, 10, 1000, steps_since_change=6),
        ... ])
        >>> history.skipped_steps, history.final_scale, history.goodput
        (1, 32768.0, 0.9)
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
