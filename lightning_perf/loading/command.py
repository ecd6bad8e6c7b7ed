"""``lightning-perf data``: find out which part of loading is slow."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from lightning_perf.arguments import add_outputs, describe, positive, progress_printer, write_output
from lightning_perf.errors import UserError
from lightning_perf.exit_codes import ExitCode

if TYPE_CHECKING:
    from lightning_perf.loading.result import LoadingReport

HELP = "find out which part of your data loading is slow"

SECONDS = 10.0
"""How long to load by default."""


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


def measure_source(source: str, *, seconds: float = SECONDS, step_ms: float | None = None) -> LoadingReport:
    """Import a data set and measure how long its batches take to load.

    Args:
        source: ``package.module:name`` of a function without arguments that returns the data set.
        seconds: How long to load.
        step_ms: Time of a training step without waits for data.

    Raises:
        LoadingError: The data set cannot be loaded.
        UserError: There is no such name.
        MissingExtraError: torch is not installed.
    """
    from lightning_perf.lazy_imports import import_extra
    from lightning_perf.named_object import find_object

    import_extra("torch", "train")
    from lightning_perf.loading.measure import measure_loading, training_loader
    from lightning_perf.loading.result import LoadingError

    made = find_object(source, "PKG:NAME")
    if callable(made) and not hasattr(made, "train_dataloader"):
        try:
            made = made()
        except Exception as error:
            raise LoadingError(
                f"PKG:NAME {source}", f"fails ({type(error).__name__}: {error})", "Give a function without arguments"
            ) from error
    return measure_loading(training_loader(made), seconds=seconds, step_ms=step_ms, name=source)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    progress_printer(options.quiet)(f"loading for {options.seconds:g} s in one worker process")
    report = measure_source(options.source, seconds=options.seconds, step_ms=options.step_ms)
    if options.markdown is not None:
        write_output(options.markdown, report.to_markdown(), UserError)
    if options.json:
        sys.stdout.write(report.to_json())
    else:
        report.print()
    return ExitCode.SUCCESS
