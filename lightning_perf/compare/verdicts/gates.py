"""What you declare before looking at the runs: settings, and gates such as ``step_time<=1.05`` for a build to pass."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from enum import Enum

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.records.metrics import METRICS, QUALITY_METRICS, Scale
from lightning_perf.statistics.collapse import CollapseCounts
from lightning_perf.statistics.values import Estimate

__all__ = [
    "ALLOW_DIVERGENCE",
    "ALLOW_FAILURES",
    "ALLOW_SESSIONS",
    "Gate",
    "GateOutcome",
    "GateResult",
    "Settings",
    "judge",
    "parse_gate",
]

DEFAULT_LEVEL = 0.05

ALLOW_FAILURES = "failures"
ALLOW_DIVERGENCE = "divergence"
ALLOW_SESSIONS = "sessions"
"""Entries of `Settings.allow` that are no facts: what a candidate may do more often than the baseline, and that the
arms were run one after the other."""

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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was declared before looking at the runs.

    Attributes:
        treatment: Facts under test, by name or group; those that a study declared are added.
        allow: Facts that may differ besides. `ALLOW_FAILURES` and `ALLOW_DIVERGENCE` allow runs of a candidate that do
            not finish or do not learn.
            `ALLOW_SESSIONS` takes the runs of an arm as independent, although they were not alternated with the others.
        accuracy: Name of the accuracy among the runs' metrics; None finds it by its name.
        quality: Name of another metric that says how well a run learned, with its direction, such as ``val_loss:min``.
        margin: The largest loss that does not matter: of accuracy as a share of 1, of another quality as a share of the
            baseline's mean.
        goal: Accuracy for the time to accuracy.
        collapse_below: Accuracy below which a run has collapsed; None derives it from all runs.
        equivalence: Times within this share of each other are equivalent.
        confidence: Coverage of the intervals of all candidates together.
        gates: What the candidates have to hold.
    """

    treatment: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    accuracy: str | None = None
    quality: str | None = None
    margin: float = 0.01
    goal: float | None = None
    collapse_below: float | None = None
    equivalence: float = 0.01
    confidence: float = 0.95
    gates: tuple[Gate, ...] = ()

    def __post_init__(self) -> None:
        for name in ("treatment", "allow", "gates"):
            entries = getattr(self, name)
            wanted = Gate if name == "gates" else str
            if not isinstance(entries, tuple) or not all(isinstance(entry, wanted) for entry in entries):
                raise CompareError(f"Settings({name}={entries!r}): must be a tuple of {wanted.__name__}.")
        for name in ("margin", "equivalence", "confidence"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
                raise CompareError(f"Settings({name}={value!r}): must be a number from 0 to 1.")
        if not 0 < self.confidence < 1:
            raise CompareError(f"Settings(confidence={self.confidence!r}): must be above 0 and below 1.")

    def over(self, declared: Settings) -> Settings:
        """Return these settings, with what was declared earlier where they are the defaults.

        Args:
            declared: The earlier settings. Their treatment and what they allow are added.
        """
        default = Settings()
        kept = {
            field.name: getattr(declared, field.name)
            for field in fields(Settings)
            if getattr(self, field.name) == getattr(default, field.name)
        }
        for name in ("treatment", "allow"):
            kept[name] = tuple(dict.fromkeys([*getattr(declared, name), *getattr(self, name)]))
        return replace(self, **kept)


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


def judge(
    gate: Gate,
    arm: str,
    estimate: Estimate | None,
    *,
    deterministic: bool = False,
    collapsed: CollapseCounts | None = None,
    with_collapsed: Estimate | None = None,
    diverged: bool = False,
) -> GateResult:
    """Judge a gate by the interval, so that noise neither passes nor fails it.

    A least quality is not held by the runs that learned alone: where more of the candidate's runs collapsed it does
    not pass. It fails where the exact test says that this was no chance, where all of them collapsed, and where it
    fails with the collapsed runs counted at the limit, since each of them lost more than that.

    Args:
        gate: The gate.
        arm: The candidate's name.
        estimate: The metric's result; None when the runs do not have it.
        deterministic: Whether every run of each arm gave the same number, which then is its own interval.
        collapsed: Collapsed runs of both arms; None without accuracy.
        with_collapsed: The metric's result with collapsed runs counted at the limit of a collapse, where there is one.
        diverged: Whether so many more of the candidate's runs collapsed, or ended as nan, that this is not chance.

    Returns:
        The outcome.
    """
    result = _judge_interval(gate, arm, estimate, deterministic)
    if gate.metric not in QUALITY_METRICS or collapsed is None or not collapsed.worse:
        return result
    if gate.upper == METRICS[gate.metric].higher_is_better:  # the gate limits how good it may be
        return result
    level = 1 - estimate.confidence if estimate is not None else DEFAULT_LEVEL
    at_limit = _judge_interval(gate, arm, with_collapsed, deterministic=False)
    failed = (
        diverged
        or GateOutcome.FAILED in (result.outcome, at_limit.outcome)
        or (collapsed.p or 0.0) < level
        or collapsed.candidate == collapsed.of_candidate
    )
    outcome = GateOutcome.FAILED if failed else GateOutcome.INCONCLUSIVE
    return replace(result, outcome=outcome, reason=f"collapsed runs: {collapsed}")


def _judge_interval(gate: Gate, arm: str, estimate: Estimate | None, deterministic: bool) -> GateResult:
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
