"""``lightning-perf tune``: try levers on a training, keep what measures faster."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_perf.arguments import positive, write_output

__all__ = ["HELP", "add_arguments", "run"]

SUCCESS = 0
USAGE = 2
INTERRUPTED = 130

HELP = "try levers on a training, keep what measures faster"

_EPILOG = (
    "Exit codes: 0 tuned, whether or not anything is kept; 2 wrong usage, or a training that fails as it is; "
    "130 interrupted, with what was measured so far if a lever was."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    parser.description = (
        "Try precision, memory layout, fused optimizer, compilation, data loading and batch size on your own module "
        "and data: short windows in turns against the best setting so far, each in a fresh process. Prints what was "
        "predicted and measured, and the lines to change. Changes no file."
    )
    parser.epilog = _EPILOG
    parser.add_argument(
        "training",
        metavar="PKG:NAME",
        help="package.module:name of a function without arguments that returns a LightningModule, or a tuple: module, "
        "DataLoader or LightningDataModule, and a dict of the Trainer's arguments",
    )
    parser.add_argument("--minutes", type=positive, default=15.0, metavar="M", help="the budget (default: 15)")
    parser.add_argument(
        "--levers", nargs="+", default=[], metavar="NAME", help="levers or families to try (default: all that apply)"
    )
    parser.add_argument(
        "--rounds", type=int, default=12, metavar="N", help="windows of each side in a trial (default: 12)"
    )
    parser.add_argument(
        "--window", type=positive, default=0.75, metavar="S", help="seconds a window should take (default: 0.75)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and order (default: 0)")
    parser.add_argument("--json", action="store_true", help="write the whole document as JSON")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables as Markdown, too")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from lightning_perf.lazy_imports import import_extra
    from lightning_perf.tune.errors import TuneError
    from lightning_perf.tune.tuner import PerfTuner

    import_extra("torch", "train")
    import_extra("scipy", "compare")
    tuner = PerfTuner(
        minutes=options.minutes,
        levers=options.levers,
        rounds=options.rounds,
        window_s=options.window,
        seed=options.seed,
    )
    result = tuner.tune(options.training, on_progress=lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    code = INTERRUPTED if result.interrupted else SUCCESS
    if options.markdown:
        try:
            write_output(options.markdown, result.to_markdown(), TuneError)
        except TuneError as error:
            print(f"lightning-perf: {error}", file=sys.stderr)  # noqa: T201
            code = USAGE
    if options.json:
        sys.stdout.write(result.to_json())
    else:
        result.print()
    return code
