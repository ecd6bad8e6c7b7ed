"""`Calibration`: the document that shows how often measured gains were inside the estimated ranges."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

from msgspec import Struct

from lightning_perf import __version__
from lightning_perf.documents import Format, SavedDocument, TextDocument
from lightning_perf.errors import UserError
from lightning_perf.run_files.estimates import ESTIMATES_NAME, EstimateOutcome, Source, find_outcomes, without_repeats
from lightning_perf.show.blocks import Block, Cell, Line, TableRow, listing, table
from lightning_perf.statistics.collapse import clopper_pearson
from lightning_perf.statistics.values import Estimate
from lightning_perf.units import NOT_AVAILABLE, format_share

SCHEMA_VERSION = 1
"""Version of the document's layout. Every change that an old reader would misread raises it."""

EstimateVerdict = Literal["inside", "above", "below", "cannot be told"]


class EstimatesError(UserError, ValueError):
    """There are no measured estimates to show, or a file of them cannot be read. The message says why."""


class CheckedEstimate(Struct, frozen=True):
    """One estimate with its outcome and the verdict on it.

    Attributes:
        outcome: The estimate and the measured gain.
        verdict: ``inside`` if the gain is in the estimated range. ``above`` or ``below`` if the whole interval of the
            gain is outside. Otherwise ``cannot be told``, also if the change was measured on top of others.
        width: Upper end of the range divided by the lower one; ``None`` if the lower end is 0 or negative.
    """

    outcome: EstimateOutcome
    verdict: EstimateVerdict
    width: float | None


class Summary(Struct, frozen=True):
    """The outcomes of the estimates of one rule from one source.

    Attributes:
        rule: ID of the rule; ``None`` for all rules together.
        source: ``probed``, ``general`` or ``recording``.
        count: Measured estimates.
        inside: Gains inside their ranges.
        above: Gains certainly above.
        below: Gains certainly below.
        undecided: Gains without a clear verdict.
        without_interval: Measurements without an interval, from one run of each side.
        median_width: Median width of the ranges; ``None`` if half of them or more start at 0 or below.
        coverage: Share of gains inside among the decided ones that were measured with an interval, with the exact
            binomial interval of that share.
    """

    rule: str | None
    source: Source
    count: int
    inside: int
    above: int
    below: int
    undecided: int
    without_interval: int
    median_width: float | None
    coverage: Estimate


class Calibration(TextDocument, SavedDocument, frozen=True):
    """How often measured gains were inside the ranges that findings estimated.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        folders: The folders that were read.
        rules: One summary per rule and source, the rules in alphabetical order.
        totals: One summary per source, over all rules.
        estimates: Every estimate with its outcome, in the order of the measurements.
    """

    schema_version: int
    tool_version: str
    folders: tuple[str, ...]
    rules: tuple[Summary, ...]
    totals: tuple[Summary, ...]
    estimates: tuple[CheckedEstimate, ...]

    _format = Format("table of measured estimates", "table", SCHEMA_VERSION, "make it again", EstimatesError)

    def blocks(self) -> Iterator[Block]:
        """Yield a sentence per source, the rules, the estimates, and notes that explain the figures."""
        yield Line(" ".join(map(_sentence, self.totals)), "strong")
        yield table(RULE_COLUMNS, map(_summary_row, (*self.rules, *self.totals)), "Estimates by rule")
        yield table(ESTIMATE_COLUMNS, map(_estimate_row, self.estimates), "Measured estimates")
        yield from listing(_footnotes(self), "quiet")


def verdict_of(outcome: EstimateOutcome) -> EstimateVerdict:
    """Return whether a measured gain was inside its estimated range.

    Example:
        >>> gain = dict(rule="cpu-bf16", setting="", step_ms=100, source="general", method="tune", measurement="1")
        >>> verdict_of(EstimateOutcome(low_ms=20, high_ms=30, gain_ms=25, gain_low_ms=15, gain_high_ms=35, **gain))
        'inside'
        >>> verdict_of(EstimateOutcome(low_ms=20, high_ms=30, gain_ms=10, gain_low_ms=5, gain_high_ms=15, **gain))
        'below'
        >>> verdict_of(EstimateOutcome(low_ms=20, high_ms=30, gain_ms=10, gain_low_ms=None, gain_high_ms=None, **gain))
        'cannot be told'
    """
    if outcome.on_top_of:
        return "cannot be told"
    if outcome.low_ms <= outcome.gain_ms <= outcome.high_ms:
        return "inside"
    if outcome.gain_low_ms is not None and outcome.gain_low_ms > outcome.high_ms:
        return "above"
    if outcome.gain_high_ms is not None and outcome.gain_high_ms < outcome.low_ms:
        return "below"
    return "cannot be told"


def summarize(estimates: Sequence[CheckedEstimate], rule: str | None, source: Source) -> Summary:
    """Count the verdicts of estimates."""
    verdicts = [estimate.verdict for estimate in estimates]
    with_interval = [
        estimate.verdict
        for estimate in estimates
        if estimate.outcome.gain_low_ms is not None and estimate.outcome.gain_high_ms is not None
    ]
    decided = [verdict for verdict in with_interval if verdict != "cannot be told"]
    width = median(math.inf if estimate.width is None else estimate.width for estimate in estimates)
    return Summary(
        rule=rule,
        source=source,
        count=len(estimates),
        inside=verdicts.count("inside"),
        above=verdicts.count("above"),
        below=verdicts.count("below"),
        undecided=verdicts.count("cannot be told"),
        without_interval=len(estimates) - len(with_interval),
        median_width=width if math.isfinite(width) else None,
        coverage=clopper_pearson(decided.count("inside"), len(decided)),
    )


def calibrate(outcomes: Iterable[EstimateOutcome], folders: Sequence[str] = ()) -> Calibration:
    """Build the document from outcomes."""
    estimates = tuple(
        CheckedEstimate(outcome, verdict_of(outcome), outcome.width) for outcome in without_repeats(outcomes)
    )
    by_rule: dict[tuple[str, Source], list[CheckedEstimate]] = defaultdict(list)
    by_source: dict[Source, list[CheckedEstimate]] = defaultdict(list)
    for estimate in estimates:
        by_rule[estimate.outcome.rule, estimate.outcome.source].append(estimate)
        by_source[estimate.outcome.source].append(estimate)
    return Calibration(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        folders=tuple(folders),
        rules=tuple(summarize(found, rule, source) for (rule, source), found in sorted(by_rule.items())),
        totals=tuple(summarize(found, None, source) for source, found in sorted(by_source.items())),
        estimates=estimates,
    )


def read_calibration(folders: Sequence[Path]) -> Calibration:
    """Read the measured estimates in some folders and their subfolders."""
    for folder in folders:
        if not folder.exists():
            raise EstimatesError(f"{folder}: no such folder. Give a folder with runs, tunings or studies.")
    outcomes = [outcome for folder in folders for outcome in find_outcomes(folder)]
    if not outcomes:
        names = ", ".join(map(str, folders))
        raise EstimatesError(
            f"{names}: no measured estimate ({ESTIMATES_NAME}) in it or below it. Run 'lightning-perf tune --out "
            "FOLDER PKG:NAME', or follow the advice of a finding and fit again with the same log folder."
        )
    return calibrate(outcomes, [str(folder) for folder in folders])


RULE_COLUMNS = ("rule", "source", "count", "inside", "above", "below", "cannot be told", "median width", "coverage")
ESTIMATE_COLUMNS = (
    "rule", "source", "setting", "network", "step, ms", "estimate, ms", "gain, ms", "measured by", "verdict",
)  # fmt: skip


def _sentence(total: Summary) -> str:
    decided = total.coverage.n
    estimates = "estimate was" if total.count == 1 else "estimates were"
    if not decided:
        return f"{total.count} {total.source} {estimates} measured, none with a clear verdict from an interval."
    inside = round((total.coverage.value or 0.0) * decided)
    return (
        f"{total.count} {total.source} {estimates} measured: {inside} of {decided} gains with an interval and a clear "
        f"verdict were inside the range, {_coverage(total.coverage)}."
    )


def _summary_row(summary: Summary) -> TableRow:
    return (
        summary.rule or "all rules",
        summary.source,
        *(
            Cell(str(count), count)
            for count in (summary.count, summary.inside, summary.above, summary.below, summary.undecided)
        ),
        NOT_AVAILABLE if summary.median_width is None else f"{summary.median_width:.2f}",
        _coverage(summary.coverage),
    )


def _estimate_row(estimate: CheckedEstimate) -> TableRow:
    outcome = estimate.outcome
    gain = _ms(outcome.gain_ms)
    if outcome.gain_low_ms is not None and outcome.gain_high_ms is not None:
        gain += f" ({_ms(outcome.gain_low_ms)} to {_ms(outcome.gain_high_ms)})"
    return (
        outcome.rule,
        outcome.source,
        outcome.setting + (f", on top of {', '.join(outcome.on_top_of)}" if outcome.on_top_of else ""),
        outcome.network or NOT_AVAILABLE,
        Cell(_ms(outcome.step_ms), outcome.step_ms),
        f"{_ms(outcome.low_ms)} to {_ms(outcome.high_ms)}",
        Cell(gain, outcome.gain_ms),
        outcome.method,
        estimate.verdict,
    )


def _footnotes(calibration: Calibration) -> tuple[str, ...]:
    """Return notes that explain the figures."""
    notes = [
        "inside: the measured gain is in the estimated range. above, below: its whole 95 % interval is outside.",
        "width: upper end of the range divided by the lower end.",
        (
            "coverage: share of gains inside, of those measured with an interval and a clear verdict, with its exact "
            "95 % interval."
        ),
    ]
    without = sum(total.without_interval for total in calibration.totals)
    if without:
        one = without == 1
        notes.append(
            f"{without} {'gain comes' if one else 'gains come'} from one run of each side and "
            f"{'has' if one else 'have'} no interval. The coverage leaves {'it' if one else 'them'} out."
        )
    if any(estimate.outcome.on_top_of for estimate in calibration.estimates):
        notes.append(
            "A gain on top of other changes cannot be compared with an estimate for the training without them."
        )
    return tuple(notes)


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if abs(milliseconds) >= 100 else f"{milliseconds:.3g}"


def _coverage(coverage: Estimate) -> str:
    if coverage.value is None:
        return NOT_AVAILABLE
    return f"{format_share(coverage.value)} ({format_share(coverage.low)} to {format_share(coverage.high)})"
