"""``lightning-perf sweep``: time untrained backbones at one input and device."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_perf.arguments import add_count, input_shape, plot_file, positive, print_progress, write_output

__all__ = ["HELP", "add_arguments", "run"]

SUCCESS = 0
NOTHING_RAN = 1

HELP = "time untrained backbones at your input and device"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    parser.description = (
        "Time backbones of torchvision and timm with random weights, in turns, as PyTorch runs them. "
        "Weights do not change the time: make the shortlist before training. Nothing is downloaded."
    )
    parser.epilog = "Exit codes: 0 at least one was timed; 1 none could be; 2 wrong usage."
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a model of torchvision or timm, as resnet18 or timm:mobilenetv4_conv_small (default: twelve of "
        "torchvision); the first is what speed is over",
    )
    parser.add_argument(
        "--shape",
        type=_picture_shape,
        default=(3, 224, 224),
        metavar="C,H,W",
        help="channels, height and width of an input (default: 3,224,224)",
    )
    add_count(parser, "--classes", "outputs (default: %(default)s)", default=1000)
    add_count(parser, "--batch", "inputs a call (default: %(default)s)", default=1)
    add_count(parser, "--threads", "CPU threads (default: %(default)s)", default=1)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--seconds", type=positive, default=3.0, metavar="S", help="time for each backbone (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="write the whole document as JSON to standard output")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the document as JSON to a file, too")
    parser.add_argument("--plot", type=plot_file, metavar="FILE", help="write a plot: .png, .svg or .pdf")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from lightning_perf.inference.command import require_packages

    require_packages(plot=options.plot is not None)
    return _sweep(options)


def _sweep(options: argparse.Namespace) -> int:
    from lightning_perf.inference.errors import InferenceError
    from lightning_perf.inference.measurement.measure import Effort
    from lightning_perf.inference.sweep.backbones import DEFAULT_BACKBONES
    from lightning_perf.inference.sweep.sweep import sweep_backbones

    sweep = sweep_backbones(
        options.names or DEFAULT_BACKBONES,
        options.shape,
        classes=options.classes,
        batch=options.batch,
        threads=options.threads,
        device=options.device,
        effort=Effort(seconds=options.seconds),
        on_progress=print_progress,
    )
    document = sweep.to_json()
    if options.json:
        sys.stdout.write(document)
    else:
        sweep.print()
    if options.out is not None:
        write_output(options.out, document, InferenceError)
    if all(row.latency is None for row in sweep.rows):
        return NOTHING_RAN
    if options.plot is not None:
        sweep.save_plot(options.plot)
    return SUCCESS


def _picture_shape(text: str) -> tuple[int, ...]:
    shape = input_shape(text)
    if len(shape) != 3:
        raise argparse.ArgumentTypeError(f"{text} is not channels, height and width, as 3,224,224")
    return shape
