"""``lightning-perf diff``: print the changes from one trace, or memory snapshot, to another."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_perf.arguments import add_outputs, describe, show
from lightning_perf.errors import ExitCode, TraceError

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


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from lightning_perf.estimates.followed import diff_runs
    from lightning_perf.memory_snapshot.snapshot import is_snapshot

    before, after = Path(options.before), Path(options.after)
    snapshots = is_snapshot(before), is_snapshot(after)
    if any(snapshots):
        if not all(snapshots):
            snapshot, other = (before, after) if snapshots[0] else (after, before)
            raise TraceError(other, f"is no memory snapshot, but {snapshot} is one", "Give two snapshots or two traces")
        from lightning_perf.memory_snapshot.build import analyze_snapshot
        from lightning_perf.memory_snapshot.compared import compare_snapshots

        changes = compare_snapshots(analyze_snapshot(before), analyze_snapshot(after))
        show(changes, options, title=f"{before.name} and {after.name}")
    else:
        title = f"{before.resolve().name} and {after.resolve().name}"
        show(diff_runs(before, after), options, title=title)
    return ExitCode.SUCCESS
