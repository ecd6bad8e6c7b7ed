"""``lightning-perf diff``: print the changes from one trace, or memory snapshot, to another."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import add_outputs, describe
from lightning_perf.commands.documents import show_document
from lightning_perf.errors import TraceError
from lightning_perf.exit_codes import ExitCode

if TYPE_CHECKING:
    from lightning_perf.report.compared import Compared
    from lightning_perf.report.recordings import RecordingExecutor

__all__ = ["HELP", "add_arguments", "diff_runs", "run"]

HELP = "show what changed from one trace to another"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Show which categories, operators and kernels got faster or slower from one trace to another. "
        "One pair of traces cannot separate a change from noise: use compare on repeated runs for that. If AFTER "
        "followed a finding of BEFORE, the estimated and the measured saving are stored in the folder of AFTER, in "
        "estimates.jsonl. For two snapshots of torch.cuda.memory, show which lines hold more memory.",
        usage="[OPTIONS] BEFORE AFTER",
        examples=(
            "lightning-perf diff lightning_logs/version_0/perf lightning_logs/version_1/perf",
            "lightning-perf diff before.pickle after.pickle",
        ),
        exit_codes={ExitCode.SUCCESS: "the changes were printed"},
    )
    parser.add_argument("before", metavar="BEFORE", help="trace, run folder or memory snapshot before the change")
    parser.add_argument("after", metavar="AFTER", help="trace, run folder or memory snapshot after the change")
    add_outputs(parser, top=8)


def diff_runs(
    before: str | Path, after: str | Path, *, store: bool = True, executor: RecordingExecutor | None = None
) -> Compared:
    """Analyze two recordings and return the changes from one to the other.

    Args:
        before: Trace or run folder before the change.
        after: Trace or run folder after the change.
        store: Whether to store the estimates that this pair checks, in ``estimates.jsonl`` of the second run.
        executor: Where to analyze the recordings of the ranks; ``None`` for processes of this machine.

    Raises:
        TraceError: One of them cannot be read, or is truncated.
    """
    from lightning_perf.estimates.followed import ReportedRun, check_pair, describe_outcome, run_folder, save_outcomes
    from lightning_perf.report.build import analyze
    from lightning_perf.report.recordings import analyze_recordings

    where = executor or analyze_recordings
    reports = analyze(before, executor=where), analyze(after, executor=where)
    folders = run_folder(before, reports[0]), run_folder(after, reports[1])
    compared = reports[0].diff(reports[1])
    outcomes = check_pair(ReportedRun.of(reports[0], folders[0]), ReportedRun.of(reports[1], folders[1]), "diff")
    if store and folders[1] is not None:
        save_outcomes(folders[1], outcomes)
    return replace(compared, notes=(*compared.notes, *map(describe_outcome, outcomes)))


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from lightning_perf.memory_snapshot.snapshot import is_snapshot

    before, after = Path(options.before), Path(options.after)
    snapshots = is_snapshot(before), is_snapshot(after)
    if any(snapshots):
        if not all(snapshots):
            snapshot, other = (before, after) if snapshots[0] else (after, before)
            raise TraceError(other, f"is no memory snapshot, but {snapshot} is one", "Give two snapshots or two traces")
        _show_snapshots(before, after, options)
    else:
        compared = diff_runs(before, after)
        show_document(compared, f"{before.resolve().name} and {after.resolve().name}", options)
    return ExitCode.SUCCESS


def _show_snapshots(before: Path, after: Path, options: argparse.Namespace) -> None:
    from lightning_perf.memory_snapshot.compared import compare_snapshots
    from lightning_perf.memory_snapshot.isolated import analyze_snapshot

    compared = compare_snapshots(analyze_snapshot(before), analyze_snapshot(after))
    show_document(compared, f"{before.name} and {after.name}", options)
