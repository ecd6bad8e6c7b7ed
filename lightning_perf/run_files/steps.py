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
        step_ns: Time of the step, including the wait for its batches. On CUDA it is measured by events on the device,
            because the host may run ahead. Elsewhere it is measured by the host's clock.
        data_wait_ns: Time for which the training thread waited for batches.
        device_ns: The part of ``step_ns`` in which the device did not wait for a batch: from the end of each fetch to
            the end of the work launched after it, gaps between kernels included. None if it was not measured.
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
