"""``lightning-perf view``: open the timeline of a trace."""

from __future__ import annotations

import argparse

from lightning_perf.arguments import at_least, describe
from lightning_perf.exit_codes import ExitCode

__all__ = ["HELP", "add_arguments", "run"]

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
        ),
        exit_codes={ExitCode.INTERRUPTED: "stopped by Ctrl-C, the normal end"},
    )
    parser.add_argument("path", metavar="PATH", help="trace (.json or .json.gz) or folder of a run")
    parser.add_argument(
        "--port", type=at_least(0, 65535), default=0, metavar="N", help="port to listen on (default: a free one)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(options: argparse.Namespace) -> int:
    """Serve the timeline until you press Ctrl-C."""
    from lightning_perf.view import view

    def print_line(line: str) -> None:
        print(line, flush=True)  # noqa: T201

    view(options.path, port=options.port, browser=not options.no_browser, on_progress=print_line)
    return ExitCode.SUCCESS
