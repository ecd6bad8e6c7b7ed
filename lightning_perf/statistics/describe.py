"""Describes the runs of one arm."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from lightning_perf.statistics.values import Numbers, finite


class Summary(Struct, frozen=True):
    """The measurements of one arm's runs. With few runs the percentiles describe these runs and estimate nothing.

    Attributes:
        n: Runs with a finite number.
        missing: Runs without one (None, nan or infinite).
        mean: Mean.
        sd: Standard deviation with n - 1; None for a single run.
        median: Median.
        q1: First quartile, linear between order statistics like `numpy.percentile`.
        q3: Third quartile.
        p90: 90th percentile.
        min: Smallest.
        max: Largest.
        reason: The reason for missing figures.
    """

    n: int
    missing: int
    mean: float | None
    sd: float | None
    median: float | None
    q1: float | None
    q3: float | None
    p90: float | None
    min: float | None
    max: float | None
    reason: str | None = None

    @property
    def constant(self) -> bool:
        """Whether there are at least two runs and all have exactly the same number."""
        return self.n > 1 and self.min == self.max


def describe(values: Numbers) -> Summary:
    """Summarize one number per run.

    Args:
        values: The numbers; None for a run without one.
    """
    kept = finite(values)
    missing = len(values) - len(kept)
    if not len(kept):
        return Summary(0, missing, None, None, None, None, None, None, None, None, "no run has a number")
    q1, median, q3, p90 = (float(v) for v in np.percentile(kept, [25, 50, 75, 90]))
    return Summary(
        n=len(kept),
        missing=missing,
        mean=float(kept.mean()),
        sd=float(kept.std(ddof=1)) if len(kept) > 1 else None,
        median=median,
        q1=q1,
        q3=q3,
        p90=p90,
        min=float(kept.min()),
        max=float(kept.max()),
        reason=None if len(kept) > 1 else "a single run has no standard deviation",
    )
