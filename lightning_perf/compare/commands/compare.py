"""``lightning-perf compare``: compare the runs in two or more folders."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import share, write_output

if TYPE_CHECKING:
    from lightning_perf.compare.records.record import RunRecord
    from lightning_perf.compare.verdicts.comparison import Comparison
    from lightning_perf.compare.verdicts.gates import Settings
    from lightning_perf.compare.verdicts.refusal import Unfair

__all__ = [
    "EXIT_CODES",
    "HELP",
    "add_arguments",
    "add_outputs",
    "add_settings",
    "compare_and_show",
    "exit_code",
    "read_settings",
    "report_errors",
    "run",
]

HELP = "compare runs: verdict, intervals, gates"

PASSED = 0
GATE_FAILED = 1
USAGE = 2
UNFAIR = 3
INCONCLUSIVE = 4
INVALID_RUNS = 5

EXIT_CODES = (
    "Exit codes: 0 passed, or a verdict; 1 a gate failed, or a candidate diverged or did not finish; "
    "2 wrong usage; 3 refused as unfair; 4 inconclusive; "
    "5 runs invalid or missing."
)
"""What the exit codes of ``compare`` and ``study`` mean, for the end of a ``--help``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    parser.description = "Compare runs that PerfCallback recorded. The first arm is the baseline."
    parser.epilog = EXIT_CODES
    parser.add_argument(
        "arms",
        nargs="+",
        metavar="[NAME=]PATH",
        help="an arm a path: a folder with its runs (several folders joined by commas); or one folder of a study",
    )
    add_settings(parser)
    add_outputs(parser)


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add how the comparison is shown."""
    parser.add_argument("--json", action="store_true", help="write the whole comparison as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write it as Markdown too, for a pull request")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a page too, one file that opens offline")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw plots too: PNG, SVG, and TensorBoard's images")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add what is declared before looking at the runs."""
    group = parser.add_argument_group("declared before looking at the runs")
    group.add_argument(
        "--treatment", action="append", default=[], metavar="FACT", help="what is under test, as precision"
    )
    group.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="FACT",
        help="what may differ, e.g. code; failures or divergence allow a candidate more of them than the baseline",
    )
    group.add_argument(
        "--gate", action="append", default=[], metavar="GATE", help="what must hold: step_time<=1.05, accuracy>=-0.01"
    )
    group.add_argument(
        "--accuracy", metavar="METRIC", help="the logged metric that is the accuracy (default: by its name)"
    )
    group.add_argument(
        "--quality",
        metavar="METRIC[:min|max]",
        help="another logged metric that says how well a run learned, e.g. val_loss:min (default: the accuracy, else a "
        "score or loss by its name)",
    )
    group.add_argument(
        "--margin",
        type=share,
        default=0.01,
        metavar="SHARE",
        help="loss of accuracy, or share of another quality, that does not matter (default: 0.01)",
    )
    group.add_argument(
        "--confidence",
        type=share,
        default=0.95,
        metavar="SHARE",
        help="coverage of the intervals of all candidates together (default: 0.95)",
    )
    group.add_argument(
        "--equivalence",
        type=share,
        default=0.01,
        metavar="SHARE",
        help="times within this share of each other are equivalent (default: 0.01)",
    )
    group.add_argument("--goal", type=share, metavar="SHARE", help="accuracy for the time to accuracy")
    group.add_argument(
        "--collapse-below",
        type=share,
        metavar="SHARE",
        help="a run below this accuracy has collapsed (default: by all runs)",
    )


def read_settings(options: argparse.Namespace) -> Settings:
    """The settings that `add_settings` offered.

    Raises:
        CompareError: A gate is none.
    """
    from lightning_perf.compare.verdicts.gates import Settings, parse_gate

    return Settings(
        treatment=tuple(options.treatment),
        allow=tuple(options.allow),
        accuracy=options.accuracy,
        quality=options.quality,
        margin=options.margin,
        confidence=options.confidence,
        equivalence=options.equivalence,
        goal=options.goal,
        collapse_below=options.collapse_below,
        gates=tuple(parse_gate(text) for text in options.gate),
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    return report_errors(lambda: compare_and_show(options.arms, read_settings(options), options))


def compare_and_show(arms: Sequence[str], settings: Settings, options: argparse.Namespace) -> int:
    """Compare arms, show the outcome and write the files that were asked for.

    Args:
        arms: As given on the command line: an arm a text, or the folder of a study.
        settings: What was declared before looking.
        options: With what `add_outputs` offered.

    Returns:
        The exit code.

    Raises:
        CompareError: The arms cannot be compared, or a file cannot be written.
        MissingExtraError: scipy is not installed.
        PageError: The page cannot be written.
    """
    from lightning_perf.compare.errors import CompareError
    from lightning_perf.compare.folders import compare_runs
    from lightning_perf.compare.study.results import study_notes
    from lightning_perf.compare.verdicts.refusal import UnfairError

    title = Path(arms[0]).resolve().name if len(arms) == 1 else " and ".join(arms)
    try:
        comparison = compare_runs(arms[0] if len(arms) == 1 else _read_arms(arms), settings)
    except UnfairError as error:
        refusal = error.refusal
        notes = study_notes(Path(arms[0])) if len(arms) == 1 else ()
        if options.html is not None:
            refusal.write_html(options.html, title=title)
        with suppress(BrokenPipeError):
            refusal.print(notes)
            if options.markdown is not None:
                write_output(options.markdown, refusal.to_markdown(notes), CompareError)
            if options.json:
                sys.stdout.write(refusal.to_json())
        return exit_code(refusal)
    if options.html is not None:
        comparison.write_html(options.html, title=title)
    with suppress(BrokenPipeError):  # the reader has left; the exit code tells the outcome all the same
        if options.markdown is not None:
            write_output(options.markdown, comparison.to_markdown(), CompareError)
        if options.plots is not None:
            print(f"Plots    {comparison.save_plots(options.plots)}", file=sys.stderr)  # noqa: T201
        if options.json:
            sys.stdout.write(comparison.to_json())
        else:
            comparison.print()
    return exit_code(comparison)


def report_errors(action: Callable[[], int]) -> int:
    """Carry out a command; what a user can mend becomes a line on standard error.

    Args:
        action: The command; returns its exit code.

    Returns:
        That exit code, or the one that stands for the error.
    """
    from lightning_perf.compare.errors import CompareError, InvalidRunsError
    from lightning_perf.lazy_imports import MissingExtraError
    from lightning_perf.terminal_text import plain

    try:
        return action()
    except (CompareError, MissingExtraError) as error:
        print(f"lightning-perf: {plain(str(error)).plain}", file=sys.stderr)  # noqa: T201
        return INVALID_RUNS if isinstance(error, InvalidRunsError) else USAGE


def exit_code(comparison: Comparison | Unfair) -> int:
    """Return the exit code of a comparison: by its gates, or without gates by whether there is a verdict.

    A candidate that diverged or did not finish fails, whatever the gates are.

    Args:
        comparison: The document, or that of a refused comparison.

    Returns:
        0, 1 or 4; 3 for a refused comparison.
    """
    from lightning_perf.compare.verdicts.comparison import VerdictKind
    from lightning_perf.compare.verdicts.gates import GateOutcome
    from lightning_perf.compare.verdicts.refusal import Unfair

    if isinstance(comparison, Unfair):
        return UNFAIR
    if any(
        candidate.verdict.kind in (VerdictKind.DIVERGED, VerdictKind.UNFINISHED) for candidate in comparison.candidates
    ):
        return GATE_FAILED
    if comparison.gates:
        outcomes = {gate.outcome for gate in comparison.gates}
        if GateOutcome.FAILED in outcomes:
            return GATE_FAILED
        return INCONCLUSIVE if GateOutcome.INCONCLUSIVE in outcomes else PASSED
    undecided = any(candidate.verdict.kind is VerdictKind.INCONCLUSIVE for candidate in comparison.candidates)
    return INCONCLUSIVE if undecided else PASSED


def _read_arms(texts: Sequence[str]) -> dict[str, tuple[RunRecord, ...]]:
    from lightning_perf.compare.errors import CompareError
    from lightning_perf.compare.records.record import find_records

    given = [_name_and_paths(text) for text in texts]
    last_parts = Counter(Path(paths).name for name, paths in given if name is None)
    arms: dict[str, tuple[RunRecord, ...]] = {}
    for name, paths in given:
        folders = [paths] if Path(paths).exists() else paths.split(",")
        if not all(folders):
            raise CompareError(
                f'"{paths}": one of its folders has no name. Give each arm as NAME=PATH or NAME=PATH,PATH.'
            )
        if name is None:
            name = Path(paths).name
            if not name or last_parts[name] > 1:
                name = paths
        if name in arms:
            raise CompareError(f"{name} is given twice. Give each arm a name of its own: NAME=PATH.")
        arms[name] = tuple(record for folder in folders for record in find_records(folder))
    return arms


def _name_and_paths(text: str) -> tuple[str | None, str]:
    name, equals, paths = text.partition("=")
    return (None, text) if not equals or Path(text).exists() else (name, paths)
