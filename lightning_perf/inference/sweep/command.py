"""``lightning-perf sweep``: time untrained backbones with one input shape on one device."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from lightning_perf.arguments import (
    add_count,
    add_outputs,
    describe,
    input_shape,
    positive,
    progress_printer,
    thread_count,
    write_output,
)
from lightning_perf.exit_codes import ExitCode
from lightning_perf.inference.command import add_device, choose_device, require_packages

if TYPE_CHECKING:
    from lightning_perf.inference.sweep.document import Sweep

__all__ = ["HELP", "SWEEP_FILE", "add_arguments", "run"]

HELP = "time untrained backbones with your input shape and device"

SWEEP_FILE = "sweep.json"
"""The document, in the folder of ``--out``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Time backbones from torchvision and timm with random weights, alternating between them. Weights do not "
        "change the time, so you can choose a shortlist before you train. Nothing is downloaded.",
        usage="[OPTIONS] [NAME ...]",
        examples=(
            "lightning-perf sweep",
            "lightning-perf sweep resnet18 mobilenet_v3_small --shape 1,64,64 --classes 24",
        ),
        exit_codes={
            ExitCode.SUCCESS: "at least one backbone was timed",
            ExitCode.CHECK_FAILED: "no backbone could be timed",
        },
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a model of torchvision or timm, e.g. resnet18 or timm:mobilenetv4_conv_small; speeds are relative to "
        "the first one (default: twelve from torchvision)",
    )
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--shape",
        type=_image_shape,
        default=(3, 224, 224),
        metavar="C,H,W",
        help="channels, height and width of one input (default: 3,224,224)",
    )
    add_count(group, "--classes", help="outputs of each backbone (default: %(default)s)", default=1000)
    add_count(group, "-b", "--batch-size", help="inputs per call (default: %(default)s)", default=1)
    group.add_argument(
        "-t",
        "--threads",
        type=thread_count,
        default=1,
        metavar="N",
        help="CPU threads; 'all' is one per core (default: %(default)s)",
    )
    add_device(group)
    group.add_argument(
        "--seconds", type=positive, default=3.0, metavar="SECONDS", help="time for each backbone (default: 3)"
    )
    add_outputs(parser, html=False, plot="file", out=f"keep the document there, in {SWEEP_FILE}")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    require_packages(plot=options.plot is not None)
    sweep = _sweep(options)
    _write_files(sweep, options)
    if options.json:
        sys.stdout.write(sweep.to_json())
    else:
        sweep.print()
    if all(row.latency is None for row in sweep.rows):
        return ExitCode.CHECK_FAILED
    if options.plot is not None:
        sweep.save_plot(options.plot)
    return ExitCode.SUCCESS


def _sweep(options: argparse.Namespace) -> Sweep:
    from lightning_perf.inference.measurement.measure import Effort
    from lightning_perf.inference.sweep.backbones import DEFAULT_BACKBONES
    from lightning_perf.inference.sweep.sweep import sweep_backbones

    return sweep_backbones(
        options.names or DEFAULT_BACKBONES,
        options.shape,
        classes=options.classes,
        batch=options.batch_size,
        threads=options.threads,
        device=choose_device(options.device),
        effort=Effort(seconds=options.seconds),
        on_progress=progress_printer(options.quiet),
    )


def _write_files(sweep: Sweep, options: argparse.Namespace) -> None:
    from lightning_perf.inference.errors import InferenceError

    if options.out is not None:
        write_output(options.out / SWEEP_FILE, sweep.to_json(), InferenceError)
    if options.markdown is not None:
        write_output(options.markdown, sweep.to_markdown(), InferenceError)


def _image_shape(text: str) -> tuple[int, ...]:
    shape = input_shape(text)
    if len(shape) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not channels, height and width, e.g. 3,224,224")
    return shape
