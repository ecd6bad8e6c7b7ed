"""Define `Comparison`, `Unfair` and `InvalidRuns`, the documents that the blocks and plots show."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct

from lightning_perf.compare.records.fairness import Difference
from lightning_perf.compare.verdicts.gates import GateResult
from lightning_perf.documents import Document, Format, PageDocument, SavedDocument, TextDocument
from lightning_perf.errors import CompareError, InvalidRunsError
from lightning_perf.statistics.collapse import CollapseCounts
from lightning_perf.statistics.location import NonInferiority
from lightning_perf.statistics.spread import Drift, Spread
from lightning_perf.statistics.values import Estimate, Probability, Summary

if TYPE_CHECKING:
    from lightning_perf.compare.verdicts.page import SavedPlots
    from lightning_perf.page.html import Kind
    from lightning_perf.show.blocks import Block, Parts


_Entry = TypeVar("_Entry")


SCHEMA_VERSION = 1


class VerdictKind(str, Enum):
    """The verdict on a candidate: by its step times, unless its runs diverged or did not finish."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    DIVERGED = "diverged"
    UNFINISHED = "unfinished"


class Verdict(Struct, frozen=True):
    """The verdict on one candidate, in words.

    Attributes:
        kind: Faster, slower, equivalent or inconclusive, by the step time or else the training time. Diverged or
            unfinished if more of the candidate's runs than of the baseline's failed to learn or to finish.
        headline: The verdict in one sentence, with its interval.
        details: One sentence each on load, accuracy, collapsed runs, the exact test and the detectable difference.
        next: Advice for a more certain result, or None.
    """

    kind: VerdictKind
    headline: str
    details: tuple[str, ...]
    next: str | None


class Run(Struct, frozen=True):
    """One run as a point in tables and plots.

    Attributes:
        run_id: Its unique name.
        arm: Its arm.
        block: Its block; None outside a study.
        order: Its position in the order of start over all runs, from 0.
        left_out: Why the statistics do not include it, e.g. ``warm-up``; None if they do.
        collapsed: Whether it failed to learn.
        values: A value for each metric.
        started_unix_s: When it started, in seconds since 1970 (UTC).
        revision: Revision of the code that it ran; None if it was not recorded.
    """

    run_id: str
    arm: str
    block: int | None
    order: int
    left_out: str | None
    collapsed: bool
    values: Mapping[str, float | None]
    started_unix_s: float | None = None
    revision: str | None = None


class Arm(Struct, frozen=True):
    """One setting and the statistics of its runs.

    Attributes:
        name: Its name.
        used: Number of runs in the statistics.
        left_out: Number of other runs, by reason.
        collapsed: Share of the used runs that collapsed; without a value if there is no accuracy or other quality.
        metrics: Summary of each metric over the used runs, the quality without collapsed runs.
        reached_goal: Number of runs that reached the accuracy goal; None without a goal.
        median_time_to_accuracy_s: Kaplan–Meier median over all used runs, in which runs that missed the goal are
            censored. None without a goal, or if fewer than half of the runs reached it.
        command: Command of its runs in a study, without values of variables that may be secret. None outside a study.
    """

    name: str
    used: int
    left_out: Mapping[str, int]
    collapsed: Estimate
    metrics: Mapping[str, Summary]
    reached_goal: int | None
    median_time_to_accuracy_s: float | None
    command: str | None = None


class MetricResult(Struct, frozen=True):
    """The candidate's change against the baseline in one metric.

    Attributes:
        metric: Its name in `metrics.METRICS`.
        estimate: Ratio candidate / baseline, or difference candidate - baseline.
        exact: Exact permutation test of no difference; with many runs, a test over random permutations.
        robust: Hodges–Lehmann estimate with its rank interval, on the same scale.
        deterministic: Whether all runs of each arm gave exactly the same number. The value then needs no interval.
        detectable: The smallest difference that these runs detect with 80 % power, as a ratio minus 1 or as a
            difference.
        mean: Ratio of the mean times of all runs, the total cost; None for a metric that is not a time or a throughput.
        far_blocks: Numbers of blocks in which the baseline and the candidate were far slower than in the others. None
            unless `estimate` was extended to the interval of `mean` because the blocks are skewed.
    """

    metric: str
    estimate: Estimate
    exact: Probability
    robust: Estimate
    deterministic: bool
    detectable: float | None
    mean: Estimate | None = None
    far_blocks: tuple[int, int] | None = None


class Prediction(Struct, frozen=True):
    """The predicted and the measured speed-up of mixed precision.

    Attributes:
        run_id: The profiled run of the baseline with the prediction.
        low: Smallest predicted speed-up of a step.
        high: Largest predicted speed-up of a step.
        measured: Measured speed-up: step time of the baseline over that of the candidate, with its interval.
        held: Whether the measured speed-up is in the predicted range; None without a measurement.
    """

    run_id: str
    low: float
    high: float
    measured: Estimate
    held: bool | None


class Candidate(Struct, frozen=True):
    """The results of one arm against the baseline.

    Attributes:
        arm: The candidate's name.
        verdict: The verdict in words.
        metrics: One result per metric that both arms have.
        accuracy: Whether the accuracy was kept; None without an accuracy.
        quality: Whether a loss or score was kept, in shares of the baseline's mean, positive if better. None without
            one.
        unfinished: Counts for both arms of blocks with a run that did not finish; outside a study, counts of such
            runs.
        collapse_p: p-value of Fisher's exact test for equal shares of collapsed runs, or None.
        first_to_accuracy: Sign test over blocks: which arm reached the goal first. None without a goal or blocks.
        time_spread: Ratio of the spreads of the step times (logarithms); None without step times.
        accuracy_spread: Ratio of the spreads of the accuracies without collapsed runs; None without an accuracy.
        differences: Facts that differ, all of them allowed.
        prediction: The gain that a profiled run of the baseline predicted for mixed precision, or None.
        step_time_p25: Ratio of the 25th percentiles of step times, candidate / baseline. Other load on the machine
            affects it less than the mean, but it does not show slow steps. None outside a study and on accelerators.
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
    step_time_p25: Estimate | None = None

    def metric(self, name: str) -> MetricResult:
        """Return the result in one metric.

        Args:
            name: Its name in `METRICS`, e.g. ``step_time``.

        Raises:
            CompareError: The arms do not both have this metric.
        """
        return _named(self.metrics, "metric", name, f"{self.arm} has no metric")


def _named(entries: Sequence[_Entry], field: str, name: str, missing: str) -> _Entry:
    found = next((entry for entry in entries if getattr(entry, field) == name), None)
    if found is None:
        names = ", ".join(getattr(entry, field) for entry in entries)
        raise CompareError(f'{missing} "{name}". Choose from: {names}.')
    return found


class Comparison(TextDocument, PageDocument, SavedDocument, frozen=True):
    """A comparison of several arms with the first one, the baseline.

    Attributes:
        baseline: Name of the first arm.
        blocked: Whether runs are paired by block.
        confidence: Coverage of the intervals of all candidates together.
        treatment: Facts being tested.
        allowed: Other facts that may differ.
        accuracy_metric: Name under which the runs logged the accuracy, or None.
        accuracy_goal: Accuracy for the time to accuracy, or None.
        collapse_limit: A run counts as collapsed if its accuracy or score is below this limit, or its loss above it.
            None without a limit.
        arms: The arms, the baseline first.
        candidates: The results, one for each arm but the first.
        runs: All runs by start, including those left out.
        drift: Change of the step time over the order of runs.
        notes: Facts about the runs and the study that affect how far you can trust the result.
        gates: Outcomes of the gates.
        equivalence: Times within this share of each other count as equivalent.
        hardware: The devices that the used runs ran on.
        quality_metric: Name of the logged metric that shows how well runs learned, the accuracy or another, or None.
        quality_is: Its entry in the metrics: ``accuracy``, ``loss`` or ``score``; None without one.
        machines: Host names of the machines that the used runs ran on.
        tool_version: Version of lightning-perf that made the comparison.
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
    machines: tuple[str, ...] = ()
    tool_version: str | None = None
    schema_version: int = SCHEMA_VERSION

    _format = Format("comparison", "comparison", SCHEMA_VERSION, "compare the runs again", CompareError)

    def blocks(self) -> Iterator[Block]:
        """Yield the verdicts, then the tables."""
        from lightning_perf.compare.verdicts.blocks import comparison_blocks

        return comparison_blocks(self)

    def candidate(self, arm: str) -> Candidate:
        """Return the results of one arm against the baseline.

        Args:
            arm: Its name.

        Raises:
            CompareError: No candidate has this name.

        Example:
            >>> comparison.candidate("amp").metric("step_time").estimate.value  # doctest: +SKIP
            0.94
        """
        return _named(self.candidates, "arm", arm, "The comparison has no candidate")

    def save_plots(self, folder: str | os.PathLike[str]) -> SavedPlots:
        """Save the plots as PNG and SVG, and as an event file for TensorBoard if it is installed.

        Args:
            folder: Target folder, created if it does not exist. Plots of an earlier comparison in it are replaced.

        Returns:
            The saved files.

        Raises:
            MissingExtraError: matplotlib is not installed.
            CompareError: The folder cannot be written.
        """
        from lightning_perf.compare.verdicts.page import save_plots

        return save_plots(self, Path(folder))

    def _page(self) -> tuple[Kind, str]:
        return "study", " and ".join(arm.name for arm in self.arms)

    def _parts(self) -> Parts:
        from lightning_perf.compare.verdicts.page import comparison_parts

        return comparison_parts(self)


_Judged = TypeVar("_Judged")


class UnfairError(CompareError):
    """The arms differ in more than the setting being tested. Its `refusal` is the document with the differences.

    Args:
        baseline: Name of the baseline.
        differences: For each candidate, the differences that are not allowed.
        advice: The way out; by default the options of ``compare``.
    """

    def __init__(
        self, baseline: str, differences: Mapping[str, tuple[Difference, ...]], advice: str | None = None
    ) -> None:
        rows = tuple(
            UnfairRow(arm, difference.fact, difference.baseline, difference.candidate)
            for arm, of_arm in differences.items()
            for difference in of_arm
        )
        facts = ", ".join(sorted({row.fact for row in rows}))
        super().__init__(f"The runs differ in more than the setting being tested: {facts}.")
        self.refusal = Unfair(str(self), baseline, rows, advice=advice)


class UnfairRow(Struct, frozen=True):
    """A fact that makes the comparison unfair.

    Attributes:
        arm: The candidate.
        fact: Name of the fact.
        baseline: Its distinct values over the baseline's runs.
        candidate: Its distinct values over the candidate's runs.
    """

    arm: str
    fact: str
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]


class Unfair(TextDocument, PageDocument, frozen=True):
    """A refused comparison: the arms differ in more than the setting being tested.

    Attributes:
        message: The refusal in one sentence.
        baseline: Name of the baseline.
        rows: The facts that make the comparison unfair.
        advice: The way out if it is not one of the options of ``compare``; otherwise None.
        notes: Notes on the runs of a study.
        state: ``"unfair"``, which distinguishes this document from a comparison.
        schema_version: `SCHEMA_VERSION` of the writer, as in a comparison.
    """

    message: str
    baseline: str
    rows: tuple[UnfairRow, ...]
    state: Literal["unfair"] = "unfair"
    advice: str | None = None
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def blocks(self) -> Iterator[Block]:
        """Yield the unfair differences, the notes, and the way out."""
        from lightning_perf.compare.verdicts.blocks import unfair_blocks

        return unfair_blocks(self)

    def print(self, *, file: IO[str] | None = None, width: int | None = None) -> None:
        """Print the reasons of the refusal; see `Comparison.print`. The default is standard error."""
        super().print(file=sys.stderr if file is None else file, width=width)

    def _page(self) -> tuple[Kind, str]:
        return "study", " and ".join(dict.fromkeys([self.baseline, *(row.arm for row in self.rows)]))

    def _parts(self) -> Parts:
        from lightning_perf.compare.verdicts.page import unfair_parts

        return unfair_parts(self)


def or_refusal(judge: Callable[[], _Judged]) -> _Judged | Unfair | InvalidRuns:
    """Return the outcome of a judgement, or its refusal as a document too."""
    try:
        return judge()
    except UnfairError as error:
        return error.refusal
    except InvalidRunsError as error:
        return InvalidRuns(str(error))


class InvalidRuns(Document, frozen=True):
    """A comparison that was not made: an arm has no finished and valid run.

    Attributes:
        message: The arms without valid runs, and the reasons.
        state: ``"invalid"``, which distinguishes this document from a comparison.
        schema_version: `SCHEMA_VERSION` of the writer, as in a comparison.
    """

    message: str
    state: Literal["invalid"] = "invalid"
    schema_version: int = SCHEMA_VERSION
