"""``lightning-perf demo``: print the report of a recorded training and open its page."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import webbrowser
from pathlib import Path

from lightning_perf.arguments import describe
from lightning_perf.demo import RECORDINGS, RUNS
from lightning_perf.errors import ExitCode
from lightning_perf.lazy_imports import install_command, page_url
from lightning_perf.page.html import PageError, has_browser

HELP = "show the report of a recorded training, without a training of your own"

FOLDER = Path("lightning_perf_demo")
PAGE = "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Print the report of a short training that ships with this package, and open its page. The demo needs neither "
        "torch nor a network. It copies the two recordings into a folder, where you can try other commands on them.",
        usage="[OPTIONS]",
        examples=("lightning-perf demo", "lightning-perf demo -o my_folder --no-browser"),
        exit_codes={ExitCode.SUCCESS: "the report was printed"},
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=FOLDER,
        metavar="FOLDER",
        help="folder for the page and the recordings (default: %(default)s)",
    )
    parser.add_argument("--no-browser", action="store_true", help="only write the page and print its path")


def run(options: argparse.Namespace) -> int:
    """Copy the recordings, print the report of the first one, and write and open its page."""
    from lightning_perf.report.build import analyze

    before, after = (copy_recording(name, options.out) for name in RUNS)
    report = analyze(before)
    page = options.out / PAGE
    report.write_html(page, title="lightning-perf demo")
    report.print()
    lines = [
        "",
        "This was a real training: a small CNN on a CPU. Its dataset waits 1 ms per picture, as a network disk might.",
        f"  Page:     {page}",
        f"  Next:     lightning-perf diff {before} {after}",
        "            shows the same training after the fix from the first finding: num_workers=1",
        "  Your own: Trainer(callbacks=[PerfCallback()])",
        f"            {page_url('docs/quickstart.md')}",
    ]
    if importlib.util.find_spec("plotly") is None:
        lines.append(f"  Charts:   {install_command('view')}")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    if not options.no_browser and has_browser(sys.stdout):
        webbrowser.open(page.resolve().as_uri())
    return ExitCode.SUCCESS


def copy_recording(name: str, folder: Path) -> Path:
    """Copy a recording of the package into a folder, over an earlier copy."""
    target = folder / name
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file in (RECORDINGS / name).iterdir():
            shutil.copyfile(file, target / file.name)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"Cannot write the demo to '{folder}' ({reason}). Choose another folder with --out."
        raise PageError(message) from error
    return target
