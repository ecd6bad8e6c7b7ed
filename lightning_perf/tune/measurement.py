"""Two trainings measured in turns."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

from lightning_perf.statistics.ranks import walsh_ratio
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune.runner import Runner

__all__ = ["Measurement", "measure"]

GIVE_UP_ROUNDS = 3
GIVE_UP_RATIO = 1.5
"""A lever that is so much slower in each of the first rounds is not measured further."""


@dataclass(frozen=True)
class Measurement:
    """What the windows told.

    Attributes:
        ratio: Time of the candidate over that of the base.
        base_s: Median time of the base, of a step or a sample.
        given_up: Whether it ended early, since the candidate is far slower.
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
    by_sample: bool = False,
    may_give_up: bool = False,
) -> Measurement:
    """Train windows of both in turns, in random order within a round, so that drift of the machine hits both.

    Args:
        base: What it is compared with.
        candidate: What is measured.
        steps: Optimizer steps of a window.
        rounds: Windows of each.
        order: Draws who begins.
        by_sample: Whether to compare times a sample rather than a step.
        may_give_up: Whether to end early when the candidate is far slower.

    Raises:
        TrialError: One of them fails.
    """
    for runner in (candidate, base):
        runner.window(max(1, steps // 2))
    times: dict[Runner, list[float]] = {base: [], candidate: []}
    for number in range(1, rounds + 1):
        for runner in order.sample([base, candidate], 2):
            times[runner].append(runner.time_a_step_s(steps, by_sample=by_sample))
        ratios = [theirs / ours for ours, theirs in zip(times[base], times[candidate], strict=True)]
        if may_give_up and number == GIVE_UP_ROUNDS < rounds and min(ratios) > GIVE_UP_RATIO:
            value = statistics.geometric_mean(ratios)
            reason = f"given up after {number} rounds: each was over {GIVE_UP_RATIO:g} times as slow"
            ratio = Estimate(value, None, None, 0.95, number, "geometric mean", reason)
            return Measurement(ratio, statistics.median(times[base]), given_up=True)
    return Measurement(walsh_ratio(times[base], times[candidate]), statistics.median(times[base]), given_up=False)
