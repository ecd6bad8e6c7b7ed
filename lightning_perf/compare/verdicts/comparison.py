"""`Comparison`: the document that every renderer and plot shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.records.fairness import Difference
from lightning_perf.compare.verdicts.gates import GateResult
from lightning_perf.compare.verdicts.prediction import Prediction
from lightning_perf.compare.verdicts.refusal import SCHEMA_VERSION
from lightning_perf.documents import Format, PageDocument, SavedDocument, TextDocument
from lightning_perf.statistics.collapse import CollapseCounts
from lightning_perf.statistics.describe import Summary
from lightning_perf.statistics.drift import Drift
from lightning_perf.statistics.margins import NonInferiority
from lightning_perf.statistics.spread import Spread
from lightning_perf.statistics.values import Estimate, Probability

if TYPE_CHECKING:
    from lightning_perf.compare.plots.save import SavedPlots
    from lightning_perf.page.html import Kind

__all__ = ["SCHEMA_VERSION", "Arm", "Candidate", "Comparison", "MetricResult", "Run", "Verdict", "VerdictKind"]


class VerdictKind(str, Enum):
    """The outcome of a candidate: by its step times, unless its runs diverged or did not finish."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    DIVERGED = "diverged"
    UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Verdict:
    """A comparison in words.

    Attributes:
        kind: Faster, slower, equivalent or inconclusive, by the step time (or the next metric that runs have). Diverged
            or unfinished when more of the candidate's runs than of the baseline's failed to learn or to finish.
        headline: The outcome in a sentence, with its interval.
        details: Accuracy, collapsed runs, exact test, what could have been seen: a sentence each.
        next: What would make it surer, or None.
    """

    kind: VerdictKind
    headline: str
    details: tuple[str, ...]
    next: str | None


@dataclass(frozen=True)
class Run:
    """One run as a point in tables and plots.

    Attributes:
        run_id: Its name.
        arm: Its arm.
        block: Its block; None outside a study.
        order: Place in the order of start over all runs.
        left_out: Why it is not in the statistics: warm-up, unfinished, invalid; None when it is.
        collapsed: Whether it failed to learn.
        values: A value for each metric.
    """

    run_id: str
    arm: str
    block: int | None
    order: int
    left_out: str | None
    collapsed: bool
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class Arm:
    """One setting.

    Attributes:
        name: Its name.
        used: Runs in the statistics.
        left_out: Runs that are not, by reason.
        collapsed: Share of the used runs that collapsed; without a value when accuracy is unknown.
        metrics: Summary of each metric over the used runs; accuracy without collapsed runs.
        reached_goal: Runs that reached the accuracy goal; None without a goal.
        median_time_to_accuracy_s: Kaplan–Meier median over all used runs, misses censored; None without.
    """

    name: str
    used: int
    left_out: Mapping[str, int]
    collapsed: Estimate
    metrics: Mapping[str, Summary]
    reached_goal: int | None
    median_time_to_accuracy_s: float | None


@dataclass(frozen=True)
class MetricResult:
    """Candidate against baseline in one metric.

    Attributes:
        metric: Its name in `metrics.METRICS`.
        estimate: Ratio candidate / baseline, or difference candidate - baseline.
        exact: Exact permutation test of no difference, or a drawn one where there are many runs.
        robust: Hodges–Lehmann estimate with its rank interval, on the same scale.
        deterministic: Whether all runs of each arm gave the very same number: the value then needs no interval.
        detectable: The smallest difference that these runs find with 80 % power: as a ratio less 1 or a difference.
    """

    metric: str
    estimate: Estimate
    exact: Probability
    robust: Estimate
    deterministic: bool
    detectable: float | None


@dataclass(frozen=True)
class Candidate:
    """One arm against the baseline.

    Attributes:
        arm: The candidate's name.
        verdict: The outcome in words.
        metrics: One result a metric that both arms have.
        accuracy: Whether accuracy was kept; None when there is no accuracy.
        quality: The same of a loss or score, in shares of the baseline's mean, positive when better; None without one.
        unfinished: Blocks of both arms in which a run did not finish, or such runs outside of blocks.
        collapse_p: Fisher's exact p-value of equal shares of collapsed runs, or None.
        first_to_accuracy: Sign test of who reached the goal first; None without a goal or blocks.
        time_spread: Spread of the step times (logarithms), or None when there are none.
        accuracy_spread: Spread of the accuracies without collapsed runs, or None when there are none.
        differences: Facts that differ, all of them allowed.
        prediction: For a candidate in mixed precision the gain that a profiled run of the baseline had predicted, or
            None.
    """

    arm: str
    verdict: Verdict
    metrics: tuple[MetricResult, ...]
    accuracy: NonInferiority | None
    collapse_p: float | None
    first_to_accuracy: Probability | None
    time_spread: Spread | None
    accuracy_spread: Spread | None
    differences: tuple[Difference, ...]
    prediction: Prediction | None = None
    quality: NonInferiority | None = None
    unfinished: CollapseCounts | None = None


@dataclass(frozen=True)
class Comparison(TextDocument, PageDocument, SavedDocument):
    """Arms compared with the first of them.

    Attributes:
        baseline: Name of the first arm.
        blocked: Whether runs are paired by block.
        confidence: Coverage of all candidates' intervals together.
        treatment: Facts under test.
        allowed: Facts that may differ besides.
        accuracy_metric: Name of the accuracy among the runs' metrics, or None.
        accuracy_goal: Accuracy for the time to accuracy, or None.
        collapse_limit: Accuracy (or score) below which, or loss above which, a run counts as collapsed, or None.
        arms: The arms, the baseline first.
        candidates: The results, one for each arm but the first.
        runs: All runs, also those left out, by start.
        drift: Change of the step time over the order of runs.
        notes: What the reader should know.
        gates: Outcome of the gates, when there were any.
        equivalence: Times within this share of each other count as equivalent.
        hardware: The devices that the used runs ran on.
        quality_metric: Name of the logged metric that says how well runs learned, the accuracy or another, or None.
        quality_is: Which entry of the metrics it fills: ``accuracy``, ``loss`` or ``score``; None without.
        schema_version: `SCHEMA_VERSION` of the writer.
    """

    baseline: str
    blocked: bool
    confidence: float
    treatment: tuple[str, ...]
    allowed: tuple[str, ...]
    accuracy_metric: str | None
    accuracy_goal: float | None
    collapse_limit: float | None
    arms: tuple[Arm, ...]
    candidates: tuple[Candidate, ...]
    runs: tuple[Run, ...]
    drift: Drift
    notes: tuple[str, ...]
    gates: tuple[GateResult, ...] = ()
    equivalence: float = 0.01
    hardware: tuple[str, ...] = ()
    quality_metric: str | None = None
    quality_is: str | None = None
    schema_version: int = SCHEMA_VERSION

    _format = Format("comparison", "comparison", SCHEMA_VERSION, "compare the runs again", CompareError)

    def _renderers(self) -> tuple[Callable[..., None], Callable[[Comparison], str]]:
        from lightning_perf.compare.render.console import print_comparison
        from lightning_perf.compare.render.markdown import render_markdown

        return print_comparison, render_markdown

    def save_plots(self, folder: str | os.PathLike[str]) -> SavedPlots:
        """Draw the plots and save each as PNG and SVG, with an event file for TensorBoard where that is installed.

        Args:
            folder: Where to; made when it does not exist. Plots of an earlier comparison in it are replaced.

        Returns:
            The files that were saved.

        Raises:
            MissingExtraError: matplotlib is not installed.
            CompareError: The folder cannot be written.
        """
        from lightning_perf.compare.plots.save import save_plots

        return save_plots(self, Path(folder))

    def _page(self) -> tuple[Kind, str]:
        return "study", " and ".join(arm.name for arm in self.arms)
