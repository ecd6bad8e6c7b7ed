"""``lightning-perf diff``: print the changes from one trace to another."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from lightning_perf.arguments import add_outputs, describe
from lightning_perf.commands.documents import show_document
from lightning_perf.exit_codes import ExitCode

__all__ = ["HELP", "add_arguments", "run"]

HELP = "show what changed from one trace to another"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Show which categories, operators and kernels got faster or slower from one trace to another. "
        "One pair of traces cannot separate a change from noise: use compare on repeated runs for that. If AFTER "
        "followed a finding of BEFORE, the estimated and the measured saving are stored in the folder of AFTER, in "
        "estimates.jsonl.",
        usage="[OPTIONS] BEFORE AFTER",
        examples=("lightning-perf diff lightning_logs/version_0/perf lightning_logs/version_1/perf",),
        exit_codes={ExitCode.SUCCESS: "the changes were printed"},
    )
    parser.add_argument("before", metavar="BEFORE", help="trace or run folder before the change")
    parser.add_argument("after", metavar="AFTER", help="trace or run folder after the change")
    add_outputs(parser, top=8)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from lightning_perf.estimates.followed import ReportedRun, check_pair, describe_outcome, run_folder, save_outcomes
    from lightning_perf.report.build import analyze

    before, after = analyze(options.before), analyze(options.after)
    folders = run_folder(options.before, before), run_folder(options.after, after)
    compared = before.diff(after)
    outcomes = check_pair(ReportedRun.of(before, folders[0]), ReportedRun.of(after, folders[1]), "diff")
    compared = replace(compared, notes=(*compared.notes, *map(describe_outcome, outcomes)))
    if folders[1] is not None:
        save_outcomes(folders[1], outcomes)
    title = f"{Path(options.before).resolve().name} and {Path(options.after).resolve().name}"
    show_document(compared, title, options)
    return ExitCode.SUCCESS
