"""``lightning-perf explain-nan``: print the diagnosis of a run that turned NaN or infinite in mixed precision."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import describe, write_output
from lightning_perf.errors import UserError
from lightning_perf.exit_codes import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["HELP", "add_arguments", "run"]

HEALTHY = "No step of this run had a loss of NaN or infinity, as far as it was checked."

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
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the diagnosis as Markdown")


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis and return the exit code."""
    from rich.text import Text

    from lightning_perf.markdown_text import parts_to_markdown
    from lightning_perf.report.console.precision import bad_run_section
    from lightning_perf.report.console.render import ReportConsole
    from lightning_perf.report.nan_diagnosis import diagnose_nan

    found = diagnose_nan(Path(options.folder))
    parts: list[RenderableType] = [Text(HEALTHY)]
    if found.bad_run is not None:
        parts = list(bad_run_section(found.bad_run))[1:]  # without its heading
    if options.markdown is not None:
        write_output(options.markdown, parts_to_markdown(parts), UserError)
    if options.json:
        sys.stdout.write(found.to_json())
    else:
        console = ReportConsole(file=None, width=None, highlight=False, emoji=False, markup=False)
        for part in parts:
            console.print(part)
    return ExitCode.SUCCESS
