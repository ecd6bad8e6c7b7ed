"""``lightning-perf estimates``: show how often measured gains were inside the estimated ranges."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_perf.arguments import add_outputs, describe, write_output
from lightning_perf.exit_codes import ExitCode

__all__ = ["HELP", "add_arguments", "run"]

HELP = "show how often estimated savings came true"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Show how often the savings that findings estimated came true. tune, diff, compare, study and a second fit "
        "with PerfCallback store each estimate next to the gain that they measured.",
        usage="[OPTIONS] [FOLDER ...]",
        examples=("lightning-perf estimates lightning_logs", "lightning-perf estimates --json tunings studies"),
        exit_codes={ExitCode.SUCCESS: "the table was printed"},
    )
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        default=[Path()],
        metavar="FOLDER",
        help="folder with runs, tunings or studies, at any depth (default: the current folder)",
    )
    add_outputs(parser, html=False)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code.

    Raises:
        EstimatesError: The folders hold no measured estimate.
        TraceError: A file cannot be read.
        MissingExtraError: scipy is not installed.
    """
    from lightning_perf.estimates.calibration import EstimatesError, read_calibration
    from lightning_perf.lazy_imports import import_extra

    import_extra("scipy", "compare")
    calibration = read_calibration(options.folders)
    if options.markdown is not None:
        write_output(options.markdown, calibration.to_markdown(), EstimatesError)
    if options.json:
        sys.stdout.write(calibration.to_json())
    else:
        calibration.print()
    return ExitCode.SUCCESS
