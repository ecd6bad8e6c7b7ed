"""``lightning-perf mcp``: serve the commands as tools for agents."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_perf.arguments import add_list, describe, positive
from lightning_perf.errors import ExitCode, LocatedError
from lightning_perf.mcp_server.confinement import MEMORY_GB, TIMEOUT_S

HELP = "serve the commands as tools for agents (MCP)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Serve analyze, diff, compare and other commands as tools of the Model Context Protocol, over standard input "
        "and output. Tools read only files in the folders that you give. They change no file and run none of your code "
        "unless you add --allow-run.",
        usage="[OPTIONS]",
        examples=(
            "lightning-perf mcp --folder lightning_logs",
            "lightning-perf mcp --folder . --allow-run    # tune, probe and data too",
        ),
        exit_codes={ExitCode.SUCCESS: "the client closed the connection"},
    )
    add_list(
        parser,
        "--folder",
        metavar="FOLDER",
        kind=Path,
        default=(Path(),),
        help="folder that tools may read (default: the current folder)",
    )
    parser.add_argument(
        "--allow-run", action="store_true", help="allow tune, probe and data, which run your code on this machine"
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help="time limit of a call (default: %(default)g)",
    )
    parser.add_argument(
        "--memory",
        type=positive,
        default=MEMORY_GB,
        metavar="GB",
        help="memory limit of a call that only reads (default: %(default)g)",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until the client closes the connection."""
    from lightning_perf.lazy_imports import import_extra

    for folder in options.folder:
        if not folder.is_dir():
            raise LocatedError(f"--folder {folder}", "no such folder", "Give the folder of your runs")
    import_extra("mcp.server", "mcp")
    import anyio

    from lightning_perf.mcp_server.server import ToolServer, serve

    tools = ToolServer(
        options.folder, allow_run=options.allow_run, timeout_s=options.timeout, memory_bytes=int(options.memory * 1e9)
    )
    anyio.run(serve, tools)
    return ExitCode.SUCCESS
