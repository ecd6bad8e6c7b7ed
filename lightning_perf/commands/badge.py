"""``lightning-perf badge``: draw one figure of a report or a comparison as an SVG badge, e.g. for a README."""

from __future__ import annotations

import argparse
import html
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import describe, write_output
from lightning_perf.errors import LocatedError, UserError
from lightning_perf.exit_codes import ExitCode

if TYPE_CHECKING:
    from lightning_perf.compare.verdicts.comparison import Comparison, MetricResult
    from lightning_perf.report.document import PerfReport

__all__ = ["HELP", "BadgeError", "add_arguments", "draw_badge", "run"]

HELP = "draw a figure of a report or a comparison as an SVG badge"

DEFAULT_METRIC = "step_time"

GREEN, RED, AMBER, BLUE, GREY = "#2c7a1f", "#b3261e", "#8a5a00", "#0b5cad", "#6b6b6b"
LABEL = "#444444"
"""Colors on which white text has a contrast of at least 4.5."""

CHARACTER_PX = 6.7
"""Mean width of a character. The browser stretches the text to the width that follows from it."""

PADDING_PX = 6
HEIGHT_PX = 20


class BadgeError(LocatedError):
    """The badge cannot be drawn."""


@dataclass(frozen=True)
class Badge:
    """The text of a badge.

    Attributes:
        label: The left part.
        message: The right part.
        color: Color of the right part.
    """

    label: str
    message: str
    color: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Draw one figure as an SVG badge. The badge of a report is blue. The badge of a comparison shows the change "
        "and takes its color from the gate on that metric: green for passed, red for failed, amber for inconclusive. "
        "Without such a gate the interval decides, and gray means that it includes no change.",
        usage="[OPTIONS] PATH [FILE]",
        examples=(
            "lightning-perf badge lightning_logs/version_0/perf badge.svg",
            "lightning-perf badge --metric accuracy comparison.json badge.svg",
        ),
        exit_codes={ExitCode.SUCCESS: "the badge was drawn"},
    )
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="a report.json, the folder of a run with one, or the output of compare --json",
    )
    parser.add_argument(
        "file", type=Path, nargs="?", metavar="FILE", help="the SVG file to write (default: standard output)"
    )
    parser.add_argument(
        "--metric", default=DEFAULT_METRIC, metavar="NAME", help="the figure to show (default: %(default)s)"
    )
    parser.add_argument("--label", metavar="TEXT", help="text on the left (default: the name of the figure)")
    parser.add_argument("--arm", metavar="NAME", help="candidate of a comparison (default: the first)")


def run(options: argparse.Namespace) -> int:
    """Draw the badge and return the exit code.

    Raises:
        BadgeError: The document is neither a report nor a comparison, or does not have the figure.
        UserError: The badge cannot be written.
    """
    badge = _read_badge(options)
    svg = draw_badge(badge if options.label is None else Badge(options.label, badge.message, badge.color))
    if options.file is None:
        sys.stdout.write(svg)
    else:
        write_output(options.file, svg, UserError)
    return ExitCode.SUCCESS


def draw_badge(badge: Badge) -> str:
    """Return a badge as SVG, which needs no font or address of others.

    Example:
        >>> draw_badge(Badge("step time", "12.3 ms", "#0b5cad")).startswith("<svg")
        True
    """
    widths = [round(CHARACTER_PX * len(text)) + 2 * PADDING_PX for text in (badge.label, badge.message)]
    texts = [html.escape(text) for text in (badge.label, badge.message)]
    parts = []
    for text, left, width in zip(texts, (0, widths[0]), widths, strict=True):
        parts.append(
            f'<text x="{left + width / 2:g}" y="14" textLength="{width - 2 * PADDING_PX}" '
            f'lengthAdjust="spacingAndGlyphs">{text}</text>'
        )
    name = f"{texts[0]}: {texts[1]}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{sum(widths)}" height="{HEIGHT_PX}" role="img" '
        f'aria-label="{name}"><title>{name}</title>'
        f'<rect width="{sum(widths)}" height="{HEIGHT_PX}" rx="3" fill="{LABEL}"/>'
        # The right part has round corners on the right only. A clip path would need an ID, which is not unique in a
        # page with several badges.
        f'<path d="M{widths[0]} 0h{widths[1] - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{widths[0]}z" fill="{badge.color}"/>'
        f'<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f"{''.join(parts)}</g></svg>\n"
    )


def _read_badge(options: argparse.Namespace) -> Badge:
    import msgspec

    from lightning_perf.compare.errors import CompareError
    from lightning_perf.compare.verdicts.comparison import Comparison
    from lightning_perf.report.document import PerfReport, ReportError
    from lightning_perf.run_files.report import REPORT_NAME

    path: Path = options.path / REPORT_NAME if options.path.is_dir() else options.path
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except OSError as error:
        raise BadgeError(
            path, f"cannot be read ({error.strerror})", "Give a report.json, or the output of compare --json"
        ) from error
    except msgspec.DecodeError as error:
        raise BadgeError(path, f"is not JSON of a document ({error})", "Give a report.json") from error
    if "state" in head:
        return Badge(options.metric.replace("_", " "), f"no result ({msgspec.json.decode(head['state'])})", GREY)
    try:
        if "candidates" in head:
            return _comparison_badge(path, Comparison.from_json(data), options.metric, options.arm)
        return _report_badge(path, PerfReport.from_json(data), options.metric)
    except (CompareError, ReportError) as error:
        raise BadgeError(path, str(error).rstrip("."), "Make the document again") from error


def _report_badge(path: Path, report: PerfReport, metric: str) -> Badge:
    from lightning_perf.report.key_figures import key_figures

    figures = key_figures(report)
    found = next((figure for figure in figures if figure.name == metric), None)
    if found is None:
        raise _unknown(path, metric, [figure.name for figure in figures])
    return Badge(found.title, found.text, BLUE)


def _comparison_badge(path: Path, comparison: Comparison, metric: str, arm: str | None) -> Badge:
    from lightning_perf.compare.records.metrics import METRICS, Scale
    from lightning_perf.units import format_change, format_points

    candidate = comparison.candidate(comparison.candidates[0].arm if arm is None else arm)
    result = next((result for result in candidate.metrics if result.metric == metric), None)
    if result is None:
        raise _unknown(path, metric, [result.metric for result in candidate.metrics])
    value = result.estimate.value
    text = format_change(value) if METRICS[metric].scale is Scale.RATIO else format_points(value, "pt")
    return Badge(f"{METRICS[metric].title} vs {comparison.baseline}", text, _color(comparison, candidate.arm, result))


def _color(comparison: Comparison, arm: str, result: MetricResult) -> str:
    from lightning_perf.compare.records.metrics import METRICS, Scale
    from lightning_perf.compare.verdicts.gates import GateOutcome, parse_gate

    outcomes = {
        gate.outcome
        for gate in comparison.gates
        if gate.arm == arm and gate.gate.startswith(result.metric) and parse_gate(gate.gate).metric == result.metric
    }
    for outcome, color in (
        (GateOutcome.FAILED, RED),
        (GateOutcome.INCONCLUSIVE, AMBER),
        (GateOutcome.PASSED, GREEN),
    ):
        if outcome in outcomes:
            return color
    metric, low, high = METRICS[result.metric], result.estimate.low, result.estimate.high
    no_change = 1.0 if metric.scale is Scale.RATIO else 0.0
    if low is None or high is None or low <= no_change <= high:
        return GREY
    return GREEN if (low > no_change) == metric.higher_is_better else RED


def _unknown(path: Path, metric: str, names: Sequence[str]) -> BadgeError:
    return BadgeError(path, f"has no figure '{metric}'", f"Choose one with --metric: {', '.join(names)}")
