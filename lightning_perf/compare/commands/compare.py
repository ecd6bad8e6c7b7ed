"""``lightning-perf compare``: compare the runs in two or more folders."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import add_list, add_outputs, describe, print_error, print_progress, share, write_output
from lightning_perf.exit_codes import ExitCode

if TYPE_CHECKING:
    from lightning_perf.compare.records.record import RunRecord
    from lightning_perf.compare.verdicts.comparison import Comparison
    from lightning_perf.compare.verdicts.gates import Settings
    from lightning_perf.compare.verdicts.refusal import InvalidRuns, Unfair

__all__ = [
    "EXIT_CODES",
    "HELP",
    "add_arguments",
    "add_settings",
    "compare_and_show",
    "exit_code",
    "judge_arms",
    "read_settings",
    "report_errors",
    "run",
]

HELP = "compare repeated runs: verdict, intervals, gates"

EXIT_CODES = {
    ExitCode.SUCCESS: "all gates passed; without gates, every verdict",
    ExitCode.CHECK_FAILED: "a gate failed, or a candidate diverged or did not finish",
    ExitCode.UNFAIR: "refused: the runs differ in more than the tested setting",
    ExitCode.INCONCLUSIVE: "a gate is inconclusive: the interval includes its limit",
    ExitCode.INVALID_RUNS: "an arm has no valid run",
}
"""The meanings of the exit codes of ``compare`` and ``study``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Compare the step time, accuracy and memory of runs that PerfCallback recorded. The first arm is the "
        "baseline. Give one folder per arm, or the folder of a study.",
        usage="[OPTIONS] [NAME=]PATH ...",
        examples=(
            "lightning-perf compare runs/fp32 runs/amp --treatment precision",
            "lightning-perf compare main=logs/main new=logs/new --allow code \\",
            '    --gate "step_time<=1.05" --gate "accuracy>=-0.01"',
        ),
        exit_codes=EXIT_CODES,
    )
    parser.add_argument(
        "arms",
        nargs="+",
        metavar="[NAME=]PATH",
        help="folder with the runs of one arm, or several folders separated by commas; or one folder of a study",
    )
    add_settings(parser)
    add_outputs(parser, plot="folder")


def add_settings(parser: argparse.ArgumentParser, *, default_gate: str | None = None) -> None:
    """Add the settings to declare before looking at the runs.

    Args:
        parser: The command's parser.
        default_gate: The gate that applies without ``--gate``; None for none.
    """
    group = parser.add_argument_group(
        "rules", "Decide on these before you look at the runs. A study keeps the rules that it was started with."
    )
    add_list(group, "--treatment", metavar="FACT", help="the setting being tested, e.g. precision")
    add_list(
        group,
        "--allow",
        metavar="FACT",
        help="other facts that may differ, e.g. code. 'failures' and 'divergence' accept a candidate with more failed "
        "or diverged runs",
    )
    add_list(
        group,
        "--gate",
        metavar="GATE",
        help="a limit on the ratio to the baseline, or on the difference in accuracy, e.g. 'step_time<=1.05'"
        + (f" (default: {default_gate})" if default_gate else ""),
    )
    group.add_argument(
        "--accuracy", metavar="METRIC", help="the logged metric that is the accuracy (default: found by its name)"
    )
    group.add_argument(
        "--quality",
        metavar="METRIC[:min|max]",
        help="another logged metric of how well a run learned, e.g. val_loss:min (default: the accuracy, else a score "
        "or loss found by its name)",
    )
    group.add_argument(
        "--margin",
        type=share,
        default=0.01,
        metavar="SHARE",
        help="largest loss of accuracy that does not matter, e.g. 0.01 for one percentage point; of another quality, "
        "a share of the baseline (default: %(default)s)",
    )
    group.add_argument(
        "--confidence",
        type=share,
        default=0.95,
        metavar="SHARE",
        help="joint coverage of the intervals of all candidates (default: %(default)s)",
    )
    group.add_argument(
        "--equivalence",
        type=share,
        default=0.01,
        metavar="SHARE",
        help="times that differ by less than this share are equivalent (default: %(default)s)",
    )
    group.add_argument("--goal", type=share, metavar="SHARE", help="target accuracy for the time to accuracy")
    group.add_argument(
        "--collapse-below",
        type=share,
        metavar="SHARE",
        help="a run with an accuracy below this has collapsed (default: derived from all runs)",
    )


def read_settings(options: argparse.Namespace) -> Settings:
    """Return the settings that `add_settings` offered.

    Raises:
        CompareError: A gate cannot be parsed.
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
    """Compare arms, print the comparison, and write the files that the options ask for.

    Args:
        arms: The arms as on the command line: one text per arm, or the folder of a study.
        settings: The settings that were declared before looking.
        options: The options of `add_outputs`.

    Returns:
        The exit code.

    Raises:
        CompareError: The arms cannot be compared, or a file cannot be written.
        MissingExtraError: scipy is not installed.
        PageError: The page cannot be written.
    """
    from lightning_perf.compare.errors import CompareError, InvalidRunsError
    from lightning_perf.compare.study.results import study_notes
    from lightning_perf.compare.verdicts.refusal import InvalidRuns, Unfair

    title = Path(arms[0]).resolve().name if len(arms) == 1 else " and ".join(arms)
    result = judge_arms(Path(arms[0]) if len(arms) == 1 else _read_arms(arms), settings)
    if isinstance(result, InvalidRuns):
        if options.json:
            sys.stdout.write(result.to_json())
        raise InvalidRunsError(result.message)
    if isinstance(result, Unfair):
        notes = study_notes(Path(arms[0])) if len(arms) == 1 else ()
        if options.html is not None:
            result.write_html(options.html, title=title)
        with suppress(BrokenPipeError):
            result.print(notes)
            if options.markdown is not None:
                write_output(options.markdown, result.to_markdown(notes), CompareError)
            if options.json:
                sys.stdout.write(result.to_json())
        return exit_code(result)
    if options.html is not None:
        result.write_html(options.html, title=title)
    with suppress(BrokenPipeError):  # the reader has exited, and the exit code still has to give the outcome
        if options.markdown is not None:
            write_output(options.markdown, result.to_markdown(), CompareError)
        if options.plot is not None:
            saved = result.save_plots(options.plot)
            if not options.quiet:
                print_progress(f"plots: {saved}")
        if options.json:
            sys.stdout.write(result.to_json())
        else:
            result.print()
    return exit_code(result)


def judge_arms(
    arms: Path | Mapping[str, Sequence[RunRecord]], settings: Settings, *, store: bool = True
) -> Comparison | Unfair | InvalidRuns:
    """Compare arms, and return a refusal as a document too.

    Args:
        arms: The folder of a study, or the runs of each arm, those of the baseline first.
        settings: The settings that were declared before looking.
        store: Whether to store the estimates that the comparison checks, in ``estimates.jsonl`` of a run or the study.

    Returns:
        The comparison. Or `Unfair` if the runs differ in more than the treatment, or `InvalidRuns` if an arm has no
        valid run.

    Raises:
        CompareError: The arms cannot be read.
        MissingExtraError: scipy is not installed.
    """
    from lightning_perf.compare.errors import InvalidRunsError
    from lightning_perf.compare.estimates import store_estimates
    from lightning_perf.compare.folders import compare_runs
    from lightning_perf.compare.verdicts.refusal import InvalidRuns, UnfairError

    try:
        comparison = compare_runs(arms, settings)
    except InvalidRunsError as error:
        return InvalidRuns(str(error))
    except UnfairError as error:
        return error.refusal
    if store:
        store_estimates(comparison, arms)
    return comparison


def report_errors(action: Callable[[], int]) -> int:
    """Run a command, and print an error that the user can fix as one line on standard error.

    Args:
        action: The command. It returns its exit code.

    Returns:
        That exit code, or the one of the error.
    """
    from lightning_perf.compare.errors import CompareError, InvalidRunsError
    from lightning_perf.lazy_imports import MissingExtraError
    from lightning_perf.terminal_text import plain

    try:
        return action()
    except (CompareError, MissingExtraError) as error:
        print_error(plain(str(error)).plain)
        return ExitCode.INVALID_RUNS if isinstance(error, InvalidRunsError) else ExitCode.USAGE


def exit_code(comparison: Comparison | Unfair) -> int:
    """Return the exit code of a comparison.

    Gates decide it. Without gates every verdict is a success, also *slower* and *inconclusive*. A candidate that
    diverged or did not finish fails with or without gates.

    Args:
        comparison: The comparison, or the document of a refused one.

    Returns:
        ``SUCCESS``, ``CHECK_FAILED`` or ``INCONCLUSIVE``; ``UNFAIR`` for a refused comparison.
    """
    from lightning_perf.compare.verdicts.comparison import VerdictKind
    from lightning_perf.compare.verdicts.gates import GateOutcome
    from lightning_perf.compare.verdicts.refusal import Unfair

    if isinstance(comparison, Unfair):
        return ExitCode.UNFAIR
    outcomes = {gate.outcome for gate in comparison.gates}
    kinds = {candidate.verdict.kind for candidate in comparison.candidates}
    if GateOutcome.FAILED in outcomes or kinds & {VerdictKind.DIVERGED, VerdictKind.UNFINISHED}:
        return ExitCode.CHECK_FAILED
    return ExitCode.INCONCLUSIVE if GateOutcome.INCONCLUSIVE in outcomes else ExitCode.SUCCESS


def _read_arms(texts: Sequence[str]) -> dict[str, tuple[RunRecord, ...]]:
    from lightning_perf.compare.errors import CompareError
    from lightning_perf.compare.records.record import find_records

    given = [_name_and_paths(text) for text in texts]
    last_parts = Counter(Path(paths).name for name, paths in given if name is None)
    arms: dict[str, tuple[RunRecord, ...]] = {}
    for name, paths in given:
        folders = [paths] if Path(paths).exists() else paths.split(",")
        if not all(folders):
            raise CompareError(f"'{paths}': a folder name is empty. Give each arm as NAME=PATH or NAME=PATH,PATH.")
        if name is None:
            name = Path(paths).name
            if not name or last_parts[name] > 1:
                name = paths
        if name in arms:
            raise CompareError(f"two arms are named '{name}'. Give each arm its own name: NAME=PATH.")
        arms[name] = tuple(record for folder in folders for record in find_records(folder))
    return arms


def _name_and_paths(text: str) -> tuple[str | None, str]:
    name, equals, paths = text.partition("=")
    return (None, text) if not equals or Path(text).exists() else (name, paths)
