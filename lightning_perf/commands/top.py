"""``lightning-perf top``: watch a training while it runs."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_perf.arguments import describe, positive
from lightning_perf.errors import ExitCode, TraceError

HELP = "watch the step times of a training while it runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Watch a training while it runs: step time, wait for data, samples per second, loss scale and slow steps, "
        "by rank. It reads the files that the training writes anyway, so it costs the training nothing. Press q or "
        "Ctrl-C to leave. It ends by itself when the training has ended.",
        usage="[OPTIONS] [RUN_FOLDER]",
        examples=("lightning-perf top", "lightning-perf top lightning_logs/version_0/perf --once"),
        exit_codes={ExitCode.SUCCESS: "you pressed q, the training has ended, or one frame was printed"},
    )
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="RUN_FOLDER",
        help="the folder of a run, or one above it (default: the current folder). Of several runs, top shows the "
        "one that was written to last",
    )
    parser.add_argument("--once", action="store_true", help="print one frame and exit, as without a terminal")
    parser.add_argument(
        "--interval", type=positive, default=1.0, metavar="SECONDS", help="time between two frames (default: 1)"
    )


def run(options: argparse.Namespace) -> int:
    """Show the run until it ends or you leave."""
    from lightning_perf.show.console import ReportConsole
    from lightning_perf.top.frame import render_frame
    from lightning_perf.top.watch import RunWatch

    folder = _folder(options.folder)
    watch = RunWatch(folder)
    console = ReportConsole(highlight=False, emoji=False, markup=False)
    live = not options.once and console.is_terminal
    state = watch.read()
    if live:
        from rich.live import Live

        with (
            _pressed_keys() as keys,
            Live(render_frame(state), console=console, screen=True, auto_refresh=False) as view,
        ):
            view.refresh()
            while state.ended is None and not keys.has_quit(options.interval):
                state = watch.read()
                view.update(render_frame(state), refresh=True)
    elif not (state.ranks or state.problems or state.hangs):
        raise TraceError(folder, "no step times in it yet", "They appear after 50 steps or 5 seconds of training")
    console.print(render_frame(state))  # the view is gone from the screen by now
    return ExitCode.SUCCESS


def _folder(given: str | None) -> Path:
    from lightning_perf.top.watch import find_newest_log

    if given is not None:
        folder = Path(given)
        if not folder.is_dir():
            raise TraceError(folder, "no such folder", "Give the folder of a run, e.g. lightning_logs/version_0/perf")
        return find_newest_log(folder) or folder
    newest = find_newest_log(Path.cwd())
    if newest is None:
        raise TraceError(
            Path.cwd(),
            "no folder below holds step times (steps.rank0.jsonl)",
            "Give the RUN_FOLDER, or start a training with lightning-perf run, PerfCallback or PerfLoop",
        )
    return newest


class _Keys:
    """The keys that the user presses, if standard input is a terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def has_quit(self, wait_s: float) -> bool:
        """Wait, and return whether q was pressed in the meantime."""
        if self._descriptor is None:
            time.sleep(wait_s)
            return False
        until = time.monotonic() + wait_s
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self._descriptor], [], [], left)
            if ready:
                pressed = os.read(self._descriptor, 64)
                if not pressed:  # the terminal is gone
                    self._descriptor = None
                    return False
                if b"q" in pressed.lower():
                    return True
        return False


@contextmanager
def _pressed_keys() -> Iterator[_Keys]:
    """Let keys arrive at once instead of by line, and restore the terminal afterwards."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _Keys(None)
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield _Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
