"""``lightning-perf compare``: compare the runs in two or more folders."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import (
    add_list,
    add_outputs,
    describe,
    print_error,
    print_progress,
    share,
    show,
    write_output,
)
from lightning_perf.compare.judge import EXIT_CODES, exit_code, judge_arms
from lightning_perf.errors import ExitCode

if TYPE_CHECKING:
    from lightning_perf.compare.records.record import RunRecord
    from lightning_perf.compare.verdicts.comparison import Comparison, InvalidRuns, Unfair
    from lightning_perf.compare.verdicts.gates import Settings

HELP = "compare repeated runs: verdict, intervals, gates"


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
    """Add the settings to declare before looking at the runs."""
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
    """Return the settings that `add_settings` offered."""
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
    return compare_and_show(options.arms, read_settings(options), options)


def compare_and_show(arms: Sequence[str], settings: Settings, options: argparse.Namespace) -> int:
    """Compare the arms of the command line, show the comparison, and return its exit code."""
    title = Path(arms[0]).resolve().name if len(arms) == 1 else " and ".join(arms)
    result = judge_arms(Path(arms[0]) if len(arms) == 1 else _read_arms(arms), settings)
    return show_result(result, options, title=title)


def show_result(
    result: Comparison | Unfair | InvalidRuns, options: argparse.Namespace, *, title: str | None = None
) -> int:
    """Show a comparison or its refusal, and return the exit code. A refusal is always explained on standard error."""
    from lightning_perf.compare.verdicts.comparison import InvalidRuns, Unfair
    from lightning_perf.show.terminal_text import safe

    if isinstance(result, InvalidRuns):
        if options.markdown is not None:
            write_output(options.markdown, no_result(result.message))
        if options.json:
            sys.stdout.write(result.to_json())
        print_error(safe(result.message))
        return ExitCode.INVALID_RUNS
    if isinstance(result, Unfair):
        if options.json:
            result.print()
        show(result, options, title=title)
    else:
        show(result, options, title=title, save_plots=result.save_plots)
    return exit_code(result)


def no_result(message: str) -> str:
    """Return the Markdown of a comparison that could not be made."""
    from lightning_perf.show.markup import escape

    return f"# No result\n\n{escape(message)}\n"


def _read_arms(texts: Sequence[str]) -> dict[str, tuple[RunRecord, ...]]:
    from lightning_perf.compare.records.record import find_records
    from lightning_perf.errors import CompareError

    given = [text.partition("=") if "=" in text and not Path(text).exists() else ("", "", text) for text in texts]
    last_parts = Counter(Path(paths).name for _, equals, paths in given if not equals)
    arms: dict[str, tuple[RunRecord, ...]] = {}
    for name, equals, paths in given:
        folders = [paths] if Path(paths).exists() else paths.split(",")
        if not all(folders):
            raise CompareError(f"'{paths}': a folder name is empty. Give each arm as NAME=PATH or NAME=PATH,PATH.")
        if not equals:
            name = Path(paths).name
            if not name or last_parts[name] > 1:
                name = paths
        if name in arms:
            raise CompareError(f"two arms are named '{name}'. Give each arm its own name: NAME=PATH.")
        arms[name] = tuple(record for folder in folders for record in find_records(folder, print_progress))
    return arms
