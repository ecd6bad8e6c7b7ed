"""``lightning-perf explain-nan``: print the diagnosis of a run that turned NaN or infinite in mixed precision."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_perf.arguments import describe
from lightning_perf.errors import TraceError
from lightning_perf.exit_codes import ExitCode

__all__ = ["HELP", "add_arguments", "run"]

HELP = "explain why the loss of a run turned NaN in mixed precision"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Print why the loss of a run turned NaN or infinite in mixed precision. The diagnosis has the first step and "
        "operator, the loss of the same batch in FP32, and the layers to keep in FP32. PerfCallback makes it during "
        "the training.",
        usage="[OPTIONS] RUN_FOLDER",
        examples=("lightning-perf explain-nan lightning_logs/version_0/perf",),
        exit_codes={
            ExitCode.SUCCESS: "the diagnosis was printed, or the run saw no NaN",
            ExitCode.USAGE: "the folder has no precision.json",
        },
    )
    parser.add_argument("folder", metavar="RUN_FOLDER", help="folder of a run with precision.json")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON, null without one")


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis and return the exit code."""
    from lightning_perf.report.console.precision import bad_run_section
    from lightning_perf.report.console.render import ReportConsole
    from lightning_perf.run_files.numerics.precision import PRECISION_NAME, read_precision

    folder = Path(options.folder)
    if not folder.is_dir():
        raise TraceError(folder, "no such folder", "Give the folder of a run, e.g. lightning_logs/version_0/perf")
    if not (folder / PRECISION_NAME).exists():
        raise TraceError(
            folder,
            f"no {PRECISION_NAME} in it, so no fit with PerfCallback has ended here",
            "Give the folder of such a fit, e.g. lightning_logs/version_0/perf",
        )
    found = read_precision(folder / PRECISION_NAME).bad_run
    if options.json:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    elif found is None:
        sys.stdout.write("No step of this run had a loss of NaN or infinity, as far as it was checked.\n")
    else:
        console = ReportConsole(file=None, width=None, highlight=False, emoji=False, markup=False)
        for part in list(bad_run_section(found))[1:]:  # without its heading
            console.print(part)
    return ExitCode.SUCCESS
