"""``lightning-perf view``: open the timeline of a trace."""

from __future__ import annotations

import argparse
import math

from lightning_perf.arguments import at_least, describe
from lightning_perf.errors import ExitCode

HELP = "open the timeline of a trace in Perfetto's UI"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Open the timeline of a trace in Perfetto's UI, served from this machine and without internet. "
        "Press Ctrl-C to stop the server.",
        usage="[OPTIONS] PATH",
        examples=(
            "lightning-perf view lightning_logs/version_0/perf",
            "lightning-perf view trace.json.gz --port 9001 --no-browser    # on a remote machine",
            "lightning-perf view trace.json.gz --at 1623212388626967    # at this instant",
        ),
        exit_codes={ExitCode.INTERRUPTED: "stopped by Ctrl-C, the normal end"},
    )
    parser.add_argument("path", metavar="PATH", help="trace (.json or .json.gz) or folder of a run")
    parser.add_argument(
        "--port", type=at_least(0, 65535), default=0, metavar="N", help="port to listen on (default: a free one)"
    )
    parser.add_argument(
        "--at",
        type=_instant,
        metavar="US",
        help="instant to show at first, in microseconds of the trace's own time (default: the whole trace)",
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def _instant(text: str) -> float:
    """Parse an instant in microseconds."""
    try:
        instant = float(text)
    except ValueError:
        instant = math.nan
    if not (math.isfinite(instant) and instant >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in microseconds of 0 or more")
    return instant


def run(options: argparse.Namespace) -> int:
    """Serve the timeline until you press Ctrl-C."""
    from lightning_perf.view import view

    def print_line(line: str) -> None:
        print(line, flush=True)  # noqa: T201

    view(options.path, port=options.port, browser=not options.no_browser, at_us=options.at, on_progress=print_line)
    return ExitCode.SUCCESS
