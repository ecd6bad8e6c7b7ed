"""``lightning-perf probe``: estimate the gain of other settings on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import describe, print_error, print_json, print_progress, write_output
from lightning_perf.errors import TraceError, UserError
from lightning_perf.exit_codes import ExitCode

if TYPE_CHECKING:
    from lightning_perf.run_files.probe import Probe

__all__ = ["HELP", "add_arguments", "run"]

HELP = "estimate gains by running the recorded operators again on this machine"

DEFAULT_SECONDS = 10.0
"""Time for a probe from the command line, where nobody waits for a training to end."""

TOP = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Run the recorded operators of a training again on this machine, in the settings that findings advise, and "
        "estimate the gain of each.",
        usage="[OPTIONS] PATH",
        examples=(
            "lightning-perf probe lightning_logs/version_0/perf",
            "lightning-perf probe rank0.pt.trace.json.gz --seconds 30    # from elsewhere",
            "lightning-perf probe lightning_logs/version_0/perf --compile --save",
        ),
        exit_codes={ExitCode.SUCCESS: "the probe was printed"},
    )
    parser.add_argument("path", metavar="PATH", help="a trace, the folder of a run, or its report.json")
    parser.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="SECONDS",
        help="time for the probe; more time measures more operators more often (default: %(default)g)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="also compile the recorded operators of a training on a processor, which takes a minute or more",
    )
    parser.add_argument(
        "--save", action="store_true", help="write probe.json into the run's folder, so that analyze uses it"
    )
    parser.add_argument("--json", action="store_true", help="print the probe as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables as Markdown")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code.

    Raises:
        TraceError: There is no trace, it cannot be probed here, or the probe failed.
    """
    from lightning_perf.markdown_text import parts_to_markdown
    from lightning_perf.probe.folder import probe_path, run_folder
    from lightning_perf.probe.rendering import probe_parts
    from lightning_perf.run_files.probe import write_probe

    if not options.seconds > 0:
        print_error(f"--seconds {options.seconds:g}: must be greater than 0")
        return ExitCode.USAGE
    path = Path(options.path)
    folder = run_folder(path)
    if options.save and folder is None and path.exists():
        raise TraceError(options.path, "is not the folder of a run", "Give the folder, or leave out --save")
    if not options.quiet:
        compiling = ", and compiling for a minute or more" if options.compile else ""
        print_progress(f"probing for about {options.seconds:g} s{compiling}")
    probe, _ = probe_path(path, options.seconds, compiles=options.compile)
    if options.save and folder is not None:
        write_probe(folder, probe)
    if options.markdown is not None:
        write_output(options.markdown, parts_to_markdown(probe_parts(probe, TOP)), UserError)
    if options.json:
        print_json(probe)
    else:
        _print(probe)
    return ExitCode.SUCCESS


def _print(probe: Probe) -> None:
    from rich.console import Console

    from lightning_perf.probe.rendering import probe_parts

    console = Console()
    for part in probe_parts(probe, TOP):
        console.print(part)
