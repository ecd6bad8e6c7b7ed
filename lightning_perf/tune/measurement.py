"""Decides whether a lever made the training faster, and whether its losses can be trusted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from lightning_perf.statistics.values import Estimate, t_quantile

LEAST_ROUNDS = 6
"""Fewer rounds have no 95 % interval."""
MOST_ROUNDS = 50


def noise_share(noise: Estimate) -> float:
    """Return how far from 1 the unchanged training against itself may be: the far end of its interval, as a share.

    Example:
        >>> round(noise_share(Estimate(1.0, 0.98, 1.01, 0.95, 8, "")), 4)
        0.0204
    """
    if noise.low is None or noise.high is None:
        return 0.0
    return math.expm1(max(abs(math.log(noise.low)), abs(math.log(noise.high))))


def is_gain(ratio: Estimate, noise: Estimate) -> bool:
    """Return whether the interval is below 1, and the ratio beyond the noise of the training against itself.

    Two processes of one training differ by more than their windows show, e.g. by the memory that glibc returns
    (`lightning_perf.machine.page_faults`). The interval does not contain that difference; the training against
    itself does.
    """
    if ratio.value is None or ratio.high is None:
        return False
    return ratio.high < 1 and ratio.value < 1 / (1 + noise_share(noise))


def is_loss(ratio: Estimate, noise: Estimate) -> bool:
    """Return the same in the other direction."""
    if ratio.value is None or ratio.low is None:
        return False
    return ratio.low > 1 and ratio.value > 1 + noise_share(noise)


FAMILY_ERROR = 0.05
"""Highest chance that a tuning keeps any lever at all if none of them gains anything."""


def is_confirmed(pairs: Sequence[Estimate], noise: Sequence[Estimate], levers: int) -> bool:
    """Whether several pairs of processes together show a gain that processes do not differ by.

    Each pair gives one log ratio of times. Their mean is compared with its standard error by Student's t, one-sided, at
    `FAMILY_ERROR` divided by the number of levers (Bonferroni). The variance of a pair comes from the pairs of the
    unchanged training, with their known mean of 0, and from the spread of these pairs around their own mean.

    Example:
        >>> def pair(ratio):
        ...     return Estimate(ratio, None, None, 0.95, 12, "")
        >>> is_confirmed([pair(0.90), pair(0.91), pair(0.89)], [pair(1.01), pair(0.99)], 8)
        True
        >>> is_confirmed([pair(0.97), pair(0.99), pair(0.98)], [pair(1.02), pair(0.98)], 8)
        False
    """
    gains = [math.log(pair.value) for pair in pairs if pair.value is not None]
    differences = [math.log(pair.value) for pair in noise if pair.value is not None]
    freedom = len(differences) + len(gains) - 1
    if len(gains) < len(pairs) or freedom < 1:
        return False
    mean = statistics.fmean(gains)
    variance = (sum(d * d for d in differences) + sum((gain - mean) ** 2 for gain in gains)) / freedom
    limit = t_quantile(1 - FAMILY_ERROR / max(levers, 1), freedom) * math.sqrt(variance / len(gains))
    return mean < -limit


RELATIVE_FLOOR = 0.002
"""Share of the loss that always passes, since seeds may agree by chance."""


class LossGuard:
    """Losses of the unchanged training for several seeds, which limit how far a lever may move them."""

    def __init__(self, base: Sequence[float], *others: Sequence[float]) -> None:
        self._base, self._others = tuple(base), tuple(tuple(losses) for losses in others)

    def note(self) -> str | None:
        """Return a remark that the reader needs, or None."""
        count = min(map(len, (self._base, *self._others)))
        if not count:
            return "The training returns no loss, so the numerics of kept levers are not checked."
        base, *others = (loss_of(losses, count) for losses in (self._base, *self._others))
        if not math.isfinite(base) or not all(map(math.isfinite, others)):
            return (
                "The loss of the unchanged training is NaN or infinite, so the numerics of kept levers are not checked."
            )
        if _reach([base, *others]) < RELATIVE_FLOOR * abs(base):
            return (
                "Other seeds hardly change the loss: a lever is rejected if it moves it by "
                f"{100 * RELATIVE_FLOOR:.1f} %. To measure the noise of your training, shuffle the loader, or let each "
                "process make the weights."
            )
        return None

    def harm(self, losses: Sequence[float]) -> str | None:
        """Return how a lever moved the loss, or None if it moved it no further than seeds do."""
        count = min(map(len, (self._base, *self._others, losses)))
        if not count:
            return None
        base = loss_of(self._base, count)
        return moved(loss_of(losses, count), base, [base, *(loss_of(other, count) for other in self._others)])


def loss_of(losses: Sequence[float], count: int) -> float:
    """Return the mean loss of the later half of the first steps.

    Example:
        >>> loss_of([9.0, 9.0, 1.0, 3.0, 100.0], 4)
        2.0
    """
    return float(np.mean(losses[count // 2 : count]))


def moved(candidate: float, base: float, seeds: Sequence[float]) -> str | None:
    """Return how a lever moved the loss, or None if it moved it no further than seeds do.

    The candidate has the seed of the base. Without rounding both losses would be equal, and rounding alone moves them
    apart no further than two seeds are. The limit is the 95 % interval of a difference of two seeds: Student's t for
    this number of seeds, times their standard deviation, times √2.

    Example:
        >>> moved(2.7, 2.0, [2.0, 2.1, 1.9])
        'the loss goes from 2 to 2.7; other seeds move it by 0.608 at most'
        >>> moved(2.1, 2.0, [2.0, 2.1, 1.9]) is None
        True
    """
    if not math.isfinite(base) or not all(map(math.isfinite, seeds)):
        return None  # the unchanged training diverges: there is no reference
    if not math.isfinite(candidate):
        return f"the loss is {candidate}"
    reach, floor = _reach(seeds), RELATIVE_FLOOR * abs(base)
    if abs(candidate - base) <= max(reach, floor):
        return None
    seen = f"{reach:.3g} at most" if reach >= floor else f"less than {floor:.3g}"
    return f"the loss goes from {base:.4g} to {candidate:.4g}; other seeds move it by {seen}"


def _reach(seeds: Sequence[float]) -> float:
    """Return how far apart two seeds may be: the 95 % interval of their difference."""
    if len(seeds) < 2:
        return 0.0
    return t_quantile(0.975, len(seeds) - 1) * math.sqrt(2) * float(np.std(seeds, ddof=1))
