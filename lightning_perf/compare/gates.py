"""Gates: what a comparison has to hold for a build to pass, as ``step_time<=1.05`` or ``accuracy>=-0.01``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.metrics import METRICS, Scale
from lightning_perf.compare.statistics.values import Estimate

__all__ = ["Gate", "GateOutcome", "GateResult", "judge", "parse_gate"]

_PATTERN = re.compile(r"\s*(?P<metric>\w+)\s*(?P<relation><=|>=)\s*(?P<limit>[-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*")


class GateOutcome(str, Enum):
    """How a gate was judged."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Gate:
    """A limit on one metric of the candidates.

    Attributes:
        text: As the user wrote it.
        metric: Name of the metric.
        upper: Whether the limit is the largest allowed value, else the smallest.
        limit: On the ratio candidate / baseline; for accuracy on the difference candidate - baseline.
    """

    text: str
    metric: str
    upper: bool
    limit: float


@dataclass(frozen=True)
class GateResult:
    """A gate and how it was judged.

    Attributes:
        gate: The gate, as written.
        arm: The candidate.
        outcome: Passed when the whole interval holds the limit, failed when all of it breaks it.
        value: The estimate.
        low: Lower end of its interval.
        high: Upper end of its interval.
        reason: Why it could not be judged.
    """

    gate: str
    arm: str
    outcome: GateOutcome
    value: float | None
    low: float | None
    high: float | None
    reason: str | None = None


def parse_gate(text: str) -> Gate:
    """Read a gate.

    Args:
        text: Such as ``step_time<=1.05``.

    Returns:
        The gate.

    Raises:
        CompareError: It is none, or names no metric.

    Example:
        >>> parse_gate("accuracy >= -0.01")
        Gate(text='accuracy >= -0.01', metric='accuracy', upper=False, limit=-0.01)
    """
    match = _PATTERN.fullmatch(text)
    try:
        limit = float(match["limit"]) if match else math.nan
    except ValueError:
        limit = math.nan
    if match is None or math.isnan(limit):
        raise CompareError(f'"{text}" is no gate. Write METRIC<=NUMBER or METRIC>=NUMBER, as step_time<=1.05.')
    metric = METRICS.get(match["metric"])
    if metric is None:
        raise CompareError(f'"{text}": there is no metric {match["metric"]}. There are: {", ".join(METRICS)}.')
    if metric.scale is Scale.RATIO and limit <= 0:
        raise CompareError(f'"{text}": {metric.name} is judged by the ratio to the baseline, which is positive.')
    return Gate(text, metric.name, match["relation"] == "<=", limit)


def judge(gate: Gate, arm: str, estimate: Estimate | None, *, deterministic: bool = False) -> GateResult:
    """Judge a gate by the interval, so that noise neither passes nor fails it.

    Args:
        gate: The gate.
        arm: The candidate's name.
        estimate: The metric's result; None when the runs do not have it.
        deterministic: Whether every run of each arm gave the same number, which then is its own interval.

    Returns:
        The outcome.
    """
    if estimate is None or estimate.value is None:
        reason = estimate.reason if estimate else f"the runs have no {gate.metric}"
        return GateResult(gate.text, arm, GateOutcome.INCONCLUSIVE, None, None, None, reason)
    low, high = (estimate.value, estimate.value) if deterministic else (estimate.low, estimate.high)
    if low is None or high is None:
        return GateResult(gate.text, arm, GateOutcome.INCONCLUSIVE, estimate.value, None, None, estimate.reason)
    best, worst = (low, high) if gate.upper else (-high, -low)
    limit = gate.limit if gate.upper else -gate.limit
    outcome = GateOutcome.PASSED if worst <= limit else GateOutcome.FAILED if best > limit else GateOutcome.INCONCLUSIVE
    return GateResult(gate.text, arm, outcome, estimate.value, low, high)
