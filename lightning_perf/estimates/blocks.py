"""The blocks of measured estimates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lightning_perf.show.blocks import Block, Cell, Line, TableRow, listing, table
from lightning_perf.statistics.values import Estimate
from lightning_perf.units import NOT_AVAILABLE, format_share

if TYPE_CHECKING:
    from lightning_perf.estimates.calibration import Calibration, CheckedEstimate, Summary

RULE_COLUMNS = ("rule", "source", "count", "inside", "above", "below", "cannot be told", "median width", "coverage")
ESTIMATE_COLUMNS = (
    "rule", "source", "setting", "network", "step, ms", "estimate, ms", "gain, ms", "measured by", "verdict",
)  # fmt: skip


def calibration_blocks(calibration: Calibration) -> Iterator[Block]:
    """Yield a sentence per source, the rules, the estimates, and notes that explain the figures."""
    yield Line(" ".join(map(_sentence, calibration.totals)), "strong")
    summaries = (*calibration.rules, *calibration.totals)
    yield table(RULE_COLUMNS, map(_summary_row, summaries), "Estimates by rule")
    yield table(ESTIMATE_COLUMNS, map(_estimate_row, calibration.estimates), "Measured estimates")
    yield from listing(_footnotes(calibration), "quiet")


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
        Cell(str(summary.count), summary.count),
        Cell(str(summary.inside), summary.inside),
        Cell(str(summary.above), summary.above),
        Cell(str(summary.below), summary.below),
        Cell(str(summary.undecided), summary.undecided),
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
