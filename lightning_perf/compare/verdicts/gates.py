"""Settings that you declare before you see the runs, and gates such as ``step_time<=1.05``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import partial
from typing import Any

from msgspec import Struct, structs

from lightning_perf.compare.records.metrics import METRICS, QUALITY_METRICS, Scale
from lightning_perf.errors import CompareError
from lightning_perf.statistics.collapse import CollapseCounts
from lightning_perf.statistics.values import Estimate

DEFAULT_LEVEL = 0.05

ALLOW_FAILURES = "failures"
ALLOW_DIVERGENCE = "divergence"
ALLOW_SESSIONS = "sessions"
ALLOW_WORK = "work"
"""Entries of `Settings.allow` that are not facts. A candidate may fail or diverge more often than the baseline. The
arms may have run one after the other, and may have trained on different numbers of samples or epochs."""

_PATTERN = re.compile(r"\s*(?P<metric>\w+)\s*(?P<relation><=|>=)\s*(?P<limit>[-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*")


class GateOutcome(str, Enum):
    """How a gate was judged."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


class Gate(Struct, frozen=True):
    """A limit on one metric of the candidates.

    Attributes:
        upper: Whether the limit is the largest allowed value; otherwise it is the smallest.
        limit: Limit of the ratio candidate / baseline; for accuracy, of the difference candidate - baseline.
    """

    text: str
    metric: str
    upper: bool
    limit: float


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Choices that you declare before you see the runs.

    Attributes:
        treatment: Facts being tested, by name or group. A study adds those that it declared.
        allow: Other facts that may differ. The entry ``failures`` or ``divergence`` accepts a candidate with more runs
            that do not finish or do not learn. With ``sessions`` the runs of an arm count as independent, although the
            arms did not alternate. With ``work`` times are compared although the arms trained on different numbers of
            samples per step, or of epochs.
        accuracy: Name under which the runs logged the accuracy; None finds it by its name.
        quality: Name of another metric that shows how well a run learned, with its direction, e.g. ``val_loss:min``.
        margin: The largest loss that does not matter: of accuracy as a share of 1, of another quality as a share of the
            baseline's mean.
        goal: Accuracy for the time to accuracy.
        collapse_below: A run with a lower accuracy has collapsed; None derives the limit from all runs.
        equivalence: Times within this share of each other are equivalent.
        confidence: Coverage of the intervals of all candidates together.
        gates: Limits that every candidate must keep.

    Raises:
        CompareError: A value has the wrong type or is out of range.
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
        for names, is_valid, wanted in _FIELD_RULES:
            for name in names:
                value = getattr(self, name)
                if not is_valid(value):
                    raise CompareError(f"Settings({name}={value!r}): must be {wanted}.")

    def over(self, declared: Settings) -> Settings:
        """Return these settings, with earlier ones in place of defaults. Treatments and allowances add up."""
        default = Settings()
        kept = {
            field.name: getattr(declared, field.name)
            for field in fields(Settings)
            if getattr(self, field.name) == getattr(default, field.name)
        }
        for name in ("treatment", "allow"):
            kept[name] = tuple(dict.fromkeys([*getattr(declared, name), *getattr(self, name)]))
        return replace(self, **kept)


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _is_tuple_of(kind: type, value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(entry, kind) for entry in value)


_FIELD_RULES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("treatment", "allow"), partial(_is_tuple_of, str), 'a tuple of str, e.g. ("precision",)'),
    (("gates",), partial(_is_tuple_of, Gate), 'a tuple of Gate, e.g. (parse_gate("step_time<=1.05"),)'),
    (
        ("accuracy", "quality"),
        lambda value: value is None or (isinstance(value, str) and bool(value)),
        "the name of a logged metric, or None",
    ),
    (("margin", "equivalence", "confidence"), _is_share, "a number from 0 to 1"),
    (("goal", "collapse_below"), lambda value: value is None or _is_share(value), "a number from 0 to 1"),
    (("confidence",), lambda value: 0 < value < 1, "above 0 and below 1"),
)
"""The names of fields of `Settings`, the test of their values, and the valid ones."""


class GateResult(Struct, frozen=True):
    """The outcome of a gate for one candidate.

    Attributes:
        gate: The gate, as the user wrote it.
        arm: The candidate.
        outcome: Passed if the whole interval is within the limit, failed if the whole interval is beyond it.
        value: The estimate.
        low: Lower end of its interval.
        high: Upper end of its interval.
        reason: Why the gate is inconclusive or failed, where the interval does not show it.
    """

    gate: str
    arm: str
    outcome: GateOutcome
    value: float | None
    low: float | None
    high: float | None
    reason: str | None = None


def parse_gate(text: str) -> Gate:
    """Parse a gate.

    Args:
        text: For example ``step_time<=1.05``.

    Returns:
        The gate.

    Raises:
        CompareError: The text is not a gate, or its metric is unknown.

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
        raise CompareError(
            f'--gate "{text}": not a gate. Write METRIC<=NUMBER or METRIC>=NUMBER, e.g. step_time<=1.05.'
        )
    metric = METRICS.get(match["metric"])
    if metric is None:
        raise CompareError(f'--gate "{text}": unknown metric "{match["metric"]}". Choose from: {", ".join(METRICS)}.')
    if metric.scale is Scale.RATIO and limit <= 0:
        raise CompareError(
            f'--gate "{text}": the limit of {metric.name} is a ratio to the baseline, which must be positive. '
            "For at most 5 % more than the baseline, write 1.05."
        )
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
    """Judge a gate by the whole interval, so that noise neither passes nor fails it.

    A gate on the least quality does not pass if more of the candidate's runs collapsed, however good the others are. It
    fails if all of them collapsed, or if the exact test shows that this is not chance. It also fails if it fails with
    each collapsed run counted at the limit, since each of them lost more than that.

    Collapsed runs of both arms are counted in `collapsed`. The result in `with_collapsed` counts them at the limit. If
    `diverged` is true, more of the candidate's runs collapsed than by chance. With `deterministic`, all runs of an arm
    gave the same number, which is its own interval.
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
    return structs.replace(result, outcome=outcome, reason=f"collapsed runs: {collapsed}")


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
