"""``lightning-perf run``: measure the Trainers of a script without a change to it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import add_count, describe, positive, print_error, print_progress, share_or_zero
from lightning_perf.errors import ExitCode, TraceError
from lightning_perf.lazy_imports import install_command, page_url
from lightning_perf.workers.script import ScriptError, find_script

if TYPE_CHECKING:
    from lightning_perf.report.document import PerfReport
    from lightning_perf.run_files.launch import Note

HELP = "measure a training script without a change to it"

PAGE = "report.html"
"""The page of ``--open``, in the run's folder."""

GROUPS = ("lightning.pytorch.callbacks_factory", "pytorch_lightning.callbacks_factory")
"""The entry points from which Trainers take callbacks."""

HEADING = "── lightning-perf ──"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Run a training script and measure it. Every Lightning Trainer in it gets a PerfCallback, and the report "
        "follows on standard error when the script has ended. Options go before the script. Everything after "
        "the script belongs to the script.",
        usage="[OPTIONS] SCRIPT [ARGS ...]",
        examples=(
            "lightning-perf run train.py --lr 0.1",
            "lightning-perf run --open -m mypackage.train --lr 0.1",
            "torchrun --nproc-per-node 2 -m lightning_perf run train.py",
        ),
        exit_codes={ExitCode.SUCCESS: "the script ended with 0; otherwise the exit code of the script"},
    )
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="the script and its arguments, as after 'python'",
    )
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as after 'python -m'")
    schedule = parser.add_argument_group("recorded steps")
    add_count(schedule, "--skip-first", least=0, help="steps to skip at the start (default: 10, fewer in a short fit)")
    add_count(schedule, "--wait", least=0, help="steps to skip at the start of each cycle (default: 0)")
    add_count(
        schedule, "--warmup", least=0, help="steps in which the profiler warms up (default: 3, fewer in a short fit)"
    )
    add_count(schedule, "--active", help="steps to record in each cycle (default: 5)")
    add_count(schedule, "--repeat", least=0, help="number of cycles, 0 until the fit ends (default: 1)")
    schedule.add_argument(
        "--max-overhead",
        type=share_or_zero,
        metavar="SHARE",
        help="the share of the fit's time that the profiler may cost, e.g. 0.02 (default: no limit)",
    )
    schedule.add_argument(
        "--capture-slow-steps", action="store_true", help="record again when steps become slow, or on demand"
    )
    parser.add_argument(
        "--hang-after",
        type=positive,
        metavar="SECONDS",
        help="warn, and save Python stacks, if no step or batch ends for so long (default: never)",
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--precision",
        choices=("16-mixed", "bf16-mixed", "32-true"),
        metavar="PRECISION",
        help="switch the training to 16-mixed, bf16-mixed or 32-true (default: keep that of the script)",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--out", type=Path, metavar="FOLDER", help="folder of the run (default: perf in the Trainer's log folder)"
    )
    output.add_argument(
        "--report",
        choices=("short", "full", "none"),
        default="short",
        metavar="LENGTH",
        help="short, full or none: how much of the report to print (default: %(default)s)",
    )
    output.add_argument("--open", action="store_true", help=f"write the page {PAGE} to the folder and open it")


def run(options: argparse.Namespace) -> int:
    """Run the script, report on its fits, and return the exit code of the script."""
    import msgspec

    from lightning_perf.run_files.launch import LAUNCH_VARIABLE, NOTES, LaunchSettings, own_rank
    from lightning_perf.workers.command import run_in_foreground

    found: Sequence[Note] = ()
    command = find_script(options.script, is_module=options.module, command="run").command
    _check_entry_points()
    with tempfile.TemporaryDirectory(prefix="lightning-perf-") as folder:
        notes = Path(folder) / "notes.jsonl"
        notes.touch()
        settings = LaunchSettings(str(notes), _callback_arguments(options))
        os.environ[LAUNCH_VARIABLE] = msgspec.json.encode(settings).decode()
        sys.stdout.flush()
        code = run_in_foreground(command)
        with suppress(TraceError):
            found = NOTES.read(notes)
    if own_rank() == 0:  # a launcher such as torchrun may have started several of these commands
        try:
            _report(found, options, code)
        except Exception as error:  # the exit code of the script matters more than a report
            print_error(f"the report could not be made ({type(error).__name__}: {error})")
    if code < 0:
        from lightning_perf.workers.command import die_of

        die_of(-code)
        return 128 - code  # this process ignores the signal
    return code


def _check_entry_points() -> None:
    """Check that Trainers will find the callback."""
    if all(any(found.name == "lightning_perf" for found in entry_points(group=group)) for group in GROUPS):
        return
    raise ScriptError(
        "lightning-perf",
        "this environment has no entry point for Lightning, so Trainers would not find the callback",
        f"Install the package again: {install_command('train')}",
    )


def _callback_arguments(options: argparse.Namespace) -> dict[str, str | int | float | bool]:
    from lightning_perf.callbacks.recording.recording_plan import Recording

    given = {item.name: getattr(options, item.name, None) for item in fields(Recording)} | {
        "precision": options.precision
    }
    arguments: dict[str, str | int | float | bool] = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    if options.out is not None:
        arguments["dirpath"] = str(options.out.absolute())  # the script may change its folder
    return arguments


def _report(notes: Sequence[Note], options: argparse.Namespace, code: int) -> None:
    from lightning_perf.run_files.launch import CallbackAdded, MeasurementStarted, NothingMeasured, OwnMeasurement

    folders = [Path(note.folder) for note in notes if isinstance(note, MeasurementStarted) and note.folder is not None]
    if options.report != "none" or options.open:
        for folder in folders:
            _show(folder, options)
    name = options.script[0]
    for own in dict.fromkeys(note.name for note in notes if isinstance(note, OwnMeasurement)):
        print_progress(f"{name} has a {own} of its own, which reports. The options of 'run' do not change it.")
    for reason in dict.fromkeys(note.reason for note in notes if isinstance(note, NothingMeasured)):
        print_progress(f"nothing was measured: {reason}")
    if any(not isinstance(note, CallbackAdded) for note in notes):
        return
    ended = f"{name} ended with exit code {code}" if code >= 0 else f"{signal.Signals(-code).name} ended {name}"
    if notes:
        print_progress(f"nothing was measured: {ended} and trained no step with its Trainer")
    elif code:
        print_progress(f"nothing was measured: {ended} before it created a Lightning Trainer")
    else:
        url = page_url("docs/run.md#loops-without-a-trainer")
        print_progress(
            f"nothing was measured: {name} created no Lightning Trainer. Use PerfTrainerCallback for a Trainer of "
            f"transformers, and PerfLoop for a loop of your own: {url}"
        )


def _show(folder: Path, options: argparse.Namespace) -> None:
    """Print the report of a fit, and open its page if the options ask for it."""
    report = _read_report(folder)
    if report is None:
        print_progress(f"no step was measured in {folder}")
        return
    if options.report != "none":
        print(f"\n{HEADING}", file=sys.stderr, flush=True)  # noqa: T201
    if options.report == "full":
        report.print(file=sys.stderr)
    elif options.report == "short":
        from lightning_perf.report.sections.report import short_blocks
        from lightning_perf.show.console import print_blocks

        print_blocks(short_blocks(report, folder), file=sys.stderr)
    if options.open:
        _open(report, folder)


def _read_report(folder: Path) -> PerfReport | None:
    """Return the report that the fit saved, or make it from the files of a script that was killed."""
    from lightning_perf.errors import ReportError
    from lightning_perf.report.build import analyze
    from lightning_perf.report.document import PerfReport
    from lightning_perf.run_files.report import REPORT_NAME

    try:
        return PerfReport.load(folder / REPORT_NAME)
    except (OSError, ReportError):
        pass
    try:
        return analyze(folder)
    except TraceError:
        return None


def _open(report: PerfReport, folder: Path) -> None:
    from lightning_perf.page.html import has_browser

    page = folder / PAGE
    report.write_html(page)
    print_progress(f"page: {page}")
    if has_browser(sys.stderr):
        webbrowser.open(page.as_uri())
