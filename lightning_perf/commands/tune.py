"""``lightning-perf tune``: try levers on a training and keep those that measure faster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from lightning_perf.arguments import (
    add_count,
    add_list,
    add_outputs,
    add_printed_list,
    describe,
    positive,
    progress_printer,
)
from lightning_perf.errors import ExitCode
from lightning_perf.outputs import show

HELP = "try changes on your training and keep those that are faster"

TUNE_FILE = "tune.json"
"""The document, in the folder of ``--out``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Try precision, memory layout, fused optimizer, compilation, data loading and batch size on your own "
        "training. Each change runs in a fresh process, in short windows that alternate with the current best "
        "setting. The result lists the predicted and the measured gain, and the lines to change. Your files stay "
        "unchanged.",
        usage="[OPTIONS] PKG:NAME",
        examples=(
            "lightning-perf tune mypackage.training:make",
            "lightning-perf tune --levers precision,channels-last -m 5 mypackage:make",
        ),
        exit_codes={
            ExitCode.SUCCESS: "tuned, whether or not a lever was kept",
            ExitCode.USAGE: "wrong usage, or the unchanged training fails",
            ExitCode.INTERRUPTED: "interrupted by Ctrl-C; prints the results so far",
        },
    )
    parser.add_argument(
        "training",
        metavar="PKG:NAME",
        help="package.module:name of a function without arguments. It returns a LightningModule, or a tuple of the "
        "module, a DataLoader or LightningDataModule, and a dict of Trainer arguments",
    )
    trials = parser.add_argument_group("trials")
    trials.add_argument(
        "-m", "--minutes", type=positive, default=15.0, metavar="MINUTES", help="time budget (default: 15)"
    )
    add_list(trials, "--levers", metavar="NAME", help="levers or families to try (default: all that apply)")
    add_printed_list(trials, _lever_lines, things="the levers and their families")
    add_count(
        trials, "--rounds", default=12, help="windows of each setting in one trial, 6 to 50 (default: %(default)s)"
    )
    trials.add_argument(
        "--window", type=positive, default=0.75, metavar="SECONDS", help="length of a window (default: 0.75)"
    )
    add_count(trials, "--seed", default=0, least=0, help="seed of weights, samples and order of windows (default: 0)")
    add_outputs(parser, html=False, out=f"keep {TUNE_FILE} and estimates.jsonl there")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from lightning_perf.estimates.followed import save_outcomes
    from lightning_perf.lazy_imports import import_extra
    from lightning_perf.tune.campaign import checked_estimates
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
    result = tuner.tune(options.training, on_progress=progress_printer(options.quiet))
    if options.out is not None:
        save_outcomes(options.out, checked_estimates(result))
    show(result, options, kept_as=TUNE_FILE)
    return ExitCode.INTERRUPTED if result.interrupted else ExitCode.SUCCESS


def _lever_lines() -> Iterator[str]:
    from lightning_perf.lazy_imports import import_extra

    import_extra("torch", "train")
    from lightning_perf.tune.levers.registry import LEVERS

    yield f"{'LEVER':<26}FAMILY"
    for lever in LEVERS:
        yield f"{lever.name:<26}{lever.family}"
