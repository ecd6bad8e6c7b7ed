"""The usual value of times that others disturb, and the noise of a saving that is estimated from rounds.

Other programs and machines that share a processor make some rounds longer, and none shorter. So the lower quartile
stands for all rounds: it stays in place while less than three quarters of them are disturbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles
from typing import NamedTuple

import numpy as np

DRAWS = 100
"""Draws of the bootstrap."""

NOISE_SDS = 2.0
"""Standard errors that count as noise, with many rounds. Few rounds do not show all of it."""

ONE_ROUND = 1.0
"""Deviation to assume for a single round."""


class Part(NamedTuple):
    """A part of the step in two settings.

    Attributes:
        recorded_ns: Its time per step.
        before: Its time in the probe in each round, in the setting of the recording.
        after: The same in the other setting.
    """

    recorded_ns: float
    before: Sequence[float]
    after: Sequence[float]

    @property
    def saving_ns(self) -> float:
        """Time per step that the other setting saves."""
        return self.recorded_ns * (1.0 - lower_quartile(self.after) / lower_quartile(self.before))


def lower_quartile(times: Sequence[float]) -> float:
    """Return the lower quartile of some times, interpolated; 0 without any.

    Example:
        >>> lower_quartile([10.0, 10.0, 11.0, 10.0, 15.0])
        10.0
    """
    if len(times) < 2:
        return times[0] if times else 0.0
    return quantiles(times, n=4, method="inclusive")[0]


def middle_half(times: Sequence[float]) -> tuple[float, float]:
    """Return both quartiles of at least two times, interpolated."""
    low, _, high = quantiles(times, n=4, method="inclusive")
    return low, high


def noise_ns(parts: Sequence[Part]) -> float:
    """Return the noise of the saving of some parts, on each side.

    Rounds are drawn with replacement (Efron, Annals of Statistics 7, 1979). A draw has the same rounds of all parts, so
    stretches in which the machine is slow do not count once for each part.

    Args:
        parts: Parts that were measured in the same rounds, up to the same last one. Earlier rounds that some parts lack
            are left out.
    """
    recorded_ns = np.array([part.recorded_ns for part in parts])
    rounds = min((len(times) for part in parts for times in (part.before, part.after)), default=0)
    if rounds < 2:
        return NOISE_SDS * ONE_ROUND * float(recorded_ns.sum())
    draws = np.random.default_rng(0).integers(0, rounds, (DRAWS, rounds))
    before, after = (
        np.quantile(np.array([times[-rounds:] for times in sides])[:, draws], 0.25, axis=-1)
        for sides in zip(*((part.before, part.after) for part in parts), strict=True)
    )
    return NOISE_SDS * rounds / (rounds - 1) * float(np.std(recorded_ns @ (after / np.maximum(before, 1.0))))
