"""``lightning-perf data``: find out which part of loading is slow."""

from __future__ import annotations

import argparse

from lightning_perf.arguments import add_outputs, describe, positive, progress_printer, show
from lightning_perf.errors import ExitCode
from lightning_perf.loading import SECONDS, measure_source

HELP = "find out which part of your data loading is slow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Load batches of your own data set in one worker process for a few seconds, and time reading, decoding, each "
        "transform, collate, and the transfer to the training process. The result says whether the disk, the "
        "processor, the transfer, or the number of workers is the limit.",
        usage="[OPTIONS] PKG:NAME",
        examples=(
            "lightning-perf data mypackage.training:make",
            "lightning-perf data --step-ms 120 recipes.signlang.tune:cnn",
        ),
        exit_codes={
            ExitCode.SUCCESS: "measured",
            ExitCode.USAGE: "wrong usage, or the data set fails",
            ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
        },
    )
    parser.add_argument(
        "source",
        metavar="PKG:NAME",
        help="package.module:name of a function without arguments. It returns a DataLoader, a LightningDataModule, or "
        "the same as for tune",
    )
    run_options = parser.add_argument_group("measurement")
    run_options.add_argument(
        "--seconds", type=positive, default=SECONDS, metavar="SECONDS", help="how long to load (default: %(default)g)"
    )
    run_options.add_argument(
        "--step-ms",
        type=positive,
        metavar="MS",
        help="time of a training step without waits for data, to compute the number of workers that you need",
    )
    add_outputs(parser, html=False)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    progress_printer(options.quiet)(f"loading for {options.seconds:g} s in one worker process")
    show(measure_source(options.source, seconds=options.seconds, step_ms=options.step_ms), options)
    return ExitCode.SUCCESS
