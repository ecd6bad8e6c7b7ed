"""Decides whether a lever made the training faster, and whether its losses can be trusted."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from lightning_perf.statistics.distributions import t_quantile
from lightning_perf.statistics.ranks import walsh_ratio
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune.runner import Runner

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
                f"Other seeds hardly change the loss: a lever is rejected if it moves it by {RELATIVE_FLOOR:.1%}. "
                "To measure the noise of your training, give a function that makes the weights, or a shuffled loader."
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


GIVE_UP_ROUNDS = 3
GIVE_UP_RATIO = 1.5
"""If a lever is this much slower in each of the first rounds, its measurement ends."""


@dataclass(frozen=True)
class Measurement:
    """The result of some windows.

    Attributes:
        ratio: Time of the candidate divided by that of the base.
        base_s: Median time of the base, per step or per sample.
        given_up: Whether the measurement ended early, since the candidate is far slower.
    """

    ratio: Estimate
    base_s: float
    given_up: bool


def measure(
    base: Runner,
    candidate: Runner,
    *,
    steps: int,
    rounds: int,
    order: random.Random,
    on_round: Callable[[int], None],
    by_sample: bool,
    may_give_up: bool,
) -> Measurement:
    """Train alternating windows of both, in random order within a round, so that drift of the machine hits both.

    Times are compared per step, or per sample. The measurement may end early when the candidate is far slower.
    """
    for runner in (candidate, base):
        runner.window(max(1, steps // 2))
    times: dict[Runner, list[float]] = {base: [], candidate: []}
    for number in range(1, rounds + 1):
        on_round(number)
        for runner in order.sample([base, candidate], 2):
            times[runner].append(runner.time_a_step_s(steps, by_sample=by_sample))
        ratios = [theirs / ours for ours, theirs in zip(times[base], times[candidate], strict=True)]
        if may_give_up and number == GIVE_UP_ROUNDS < rounds and min(ratios) > GIVE_UP_RATIO:
            value = statistics.geometric_mean(ratios)
            reason = f"given up after {number} rounds: each was over {GIVE_UP_RATIO:g} times as slow"
            ratio = Estimate(value, None, None, 0.95, number, "geometric mean", reason)
            return Measurement(ratio, statistics.median(times[base]), given_up=True)
    return Measurement(walsh_ratio(times[base], times[candidate]), statistics.median(times[base]), given_up=False)


def measure_in_turn(
    start_base: Callable[[], Runner],
    start_candidate: Callable[[], Runner],
    *,
    steps: int,
    rounds: int,
    on_round: Callable[[int], None],
    by_sample: bool,
) -> tuple[Measurement, Runner, Runner]:
    """Train both one after the other, for a device with too little memory for both at a time.

    The base trains half of its windows before the candidate and half after it, so that a steady drift cancels. Other
    disturbances hit one of them only, and the base is two processes: such a figure is worth less than one of `measure`.
    Returns the first base and the candidate, too; both have ended.
    """
    times: list[list[float]] = []
    runners: list[Runner] = []
    for start, windows in ((start_base, rounds // 2), (start_candidate, rounds), (start_base, rounds - rounds // 2)):
        with closing(start()) as runner:
            runners.append(runner)
            runner.window(max(1, steps // 2))
            taken = []
            for number in range(1, windows + 1):
                if start is start_candidate:
                    on_round(number)
                taken.append(runner.time_a_step_s(steps, by_sample=by_sample))
            times.append(taken)
    before, candidate, after = times
    base = [*before, *after]
    measurement = Measurement(walsh_ratio(base, candidate), statistics.median(base), given_up=False)
    return measurement, runners[0], runners[1]
