"""``steps.rank0.jsonl``: how long each step took, measured without the profiler."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.run_files.jsonl import Count, RankLog

__all__ = ["STEPS", "StepSample"]


@dataclass(frozen=True)
class StepSample:
    """The times of one step, as the step timer measured them.

    Attributes:
        step: The step's number, counted over the whole fit.
        step_ns: Wall time of the step, fetching its batches included.
        data_wait_ns: Time the training thread waited for batches; part of ``step_ns``.
        device_ns: Device time between the step's first and last device event, or None when not measured.
        samples: Samples trained on in the step, or None when the batch does not show it.
        profiled: Whether the profiler ran, warm-up and export included: the time then contains its cost.
    """

    step: Count
    step_ns: Count
    data_wait_ns: Count
    device_ns: Count | None
    samples: Count | None
    profiled: bool


# Samples are flat objects, so the last brace of a line opens the sample that was written after an incomplete one.
STEPS: RankLog[StepSample] = RankLog(StepSample, "steps", "step sample", restart=b"{")
