"""The table of measured estimates on the console and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.console import Console

from lightning_perf.estimates.calibration import Calibration, CheckedEstimate, Summary
from lightning_perf.statistics.values import Estimate
from lightning_perf.tables import Table, escape, markdown_table, print_table
from lightning_perf.terminal_text import plain
from lightning_perf.units import format_share

__all__ = ["estimate_table", "footnotes", "headline", "print_calibration", "render_markdown", "rule_table"]

NONE = "–"


def headline(calibration: Calibration) -> str:
    """Return the result in a sentence per source."""
    return " ".join(map(_sentence, calibration.totals))


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


def rule_table(calibration: Calibration) -> Table:
    """Return the table of rules and sources."""
    columns = ("rule", "source", "count", "inside", "above", "below", "cannot be told", "median width", "coverage")
    summaries = (*calibration.rules, *calibration.totals)
    return Table("Estimates by rule", columns, tuple(map(_summary_row, summaries)))


def _summary_row(summary: Summary) -> tuple[str, ...]:
    return (
        summary.rule or "all rules",
        summary.source,
        str(summary.count),
        str(summary.inside),
        str(summary.above),
        str(summary.below),
        str(summary.undecided),
        _width(summary.median_width),
        _coverage(summary.coverage),
    )


def estimate_table(calibration: Calibration) -> Table:
    """Return the table of single estimates."""
    columns = ("rule", "source", "setting", "network", "step, ms", "estimate, ms", "gain, ms", "measured by", "verdict")
    return Table("Measured estimates", columns, tuple(map(_estimate_row, calibration.estimates)))


def _estimate_row(estimate: CheckedEstimate) -> tuple[str, ...]:
    outcome = estimate.outcome
    gain = _ms(outcome.gain_ms)
    if outcome.gain_low_ms is not None and outcome.gain_high_ms is not None:
        gain += f" ({_ms(outcome.gain_low_ms)} to {_ms(outcome.gain_high_ms)})"
    return (
        outcome.rule,
        outcome.source,
        outcome.setting + (f", on top of {', '.join(outcome.on_top_of)}" if outcome.on_top_of else ""),
        outcome.network or NONE,
        _ms(outcome.step_ms),
        f"{_ms(outcome.low_ms)} to {_ms(outcome.high_ms)}",
        gain,
        outcome.method,
        estimate.verdict,
    )


def footnotes(calibration: Calibration) -> tuple[str, ...]:
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


def render_markdown(calibration: Calibration) -> str:
    """Return the document as Markdown; see `Calibration.to_markdown`."""
    parts = [f"**{escape(headline(calibration))}**"]
    parts += [markdown_table(table) for table in (rule_table(calibration), estimate_table(calibration))]
    parts.append("\n".join(f"- {escape(note)}" for note in footnotes(calibration)))
    return "\n\n".join(parts) + "\n"


def print_calibration(calibration: Calibration, *, file: IO[str] | None, width: int | None) -> None:
    """Print the document; see `Calibration.print`."""
    console = Console(file=file, width=width, highlight=False)
    console.print(plain(headline(calibration), style="bold"))
    console.print()
    for table in (rule_table(calibration), estimate_table(calibration)):
        print_table(table, console)
    _print_notes(console, footnotes(calibration))


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(plain(note, style="dim"))


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if abs(milliseconds) >= 100 else f"{milliseconds:.3g}"


def _width(width: float | None) -> str:
    return NONE if width is None else f"{width:.2f}"


def _coverage(coverage: Estimate) -> str:
    if coverage.value is None:
        return NONE
    return f"{format_share(coverage.value)} ({format_share(coverage.low)} to {format_share(coverage.high)})"
