"""The ``predict`` command."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from lightning_perf import ExitCode
from lightning_perf.arguments import add_count, describe
from recipes.signlang.commands.options import add_checkpoint_argument, add_log_dir_argument, print_progress

HELP = "Classify images with a trained network or with an exported variant of it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options."""
    describe(
        parser,
        HELP,
        usage="[OPTIONS] IMAGE ...",
        examples=(
            "python -m recipes.signlang predict hand.png more_hands/ --show montage.png",
            "python -m recipes.signlang predict hand.png --artefact variants/onnxruntime-int8",
        ),
        exit_codes={
            ExitCode.SUCCESS: "all images were classified",
            ExitCode.CHECK_FAILED: "an image could not be read",
            ExitCode.USAGE: "wrong usage, or the network cannot be loaded",
        },
    )
    parser.add_argument("pictures", nargs="+", type=Path, metavar="IMAGE", help="image files, folders of them, or zips")
    network = parser.add_argument_group("network")
    which = network.add_mutually_exclusive_group()
    add_checkpoint_argument(which)
    which.add_argument("--artefact", type=Path, metavar="FOLDER", help="a variant in the folder of infer --out")
    add_log_dir_argument(network)
    network.add_argument(
        "-d", "--device", default="cpu", metavar="DEVICE", help="where an artefact runs: cpu or cuda (default: cpu)"
    )
    add_count(network, "-t", "--threads", help="CPU threads of an artefact (default: %(default)s)", default=1)
    output = parser.add_argument_group("output")
    add_count(output, "-n", "--top", help="labels per image (default: %(default)s)", default=1)
    form = output.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of the table")
    form.add_argument("--csv", action="store_true", help="print CSV instead of the table")
    output.add_argument(
        "--show", type=Path, metavar="FILE", help="also draw the images with their labels: .png, .jpg or .webp"
    )


def run(arguments: argparse.Namespace) -> int:
    """Classify the images, and return the exit code."""
    from rich.console import Console

    from recipes.signlang.inference.montage import MOST, save_montage, shown_places
    from recipes.signlang.inference.prediction import (
        artefact_predictor,
        checkpoint_predictor,
        find_pictures,
        predict,
        print_table,
        to_csv,
        to_json,
    )
    from recipes.signlang.training.checkpoint import newest_checkpoint

    files = find_pictures(arguments.pictures)
    if arguments.artefact is not None:
        predictor = artefact_predictor(arguments.artefact, arguments.device, arguments.threads)
    else:
        predictor = checkpoint_predictor(arguments.checkpoint or newest_checkpoint(arguments.log_dir))
    print_progress(f"Network {predictor.name}: {len(predictor.labels)} labels, {predictor.image_size} pixels")
    shown = frozenset(() if arguments.show is None else shown_places(len(files)))
    predictions = [  # thousands of decoded images would fill the memory
        prediction if place in shown else replace(prediction, picture=None)
        for place, prediction in enumerate(predict(predictor, files, arguments.top))
    ]
    if arguments.json:
        sys.stdout.write(to_json(predictions, predictor))
    elif arguments.csv:
        sys.stdout.write(to_csv(predictions))
    else:
        print_table(predictions, Console(highlight=False))
    if arguments.show is not None:
        save_montage(predictions, arguments.show)
        left_out = f", {MOST} of {len(predictions)} pictures, evenly spread" if len(predictions) > MOST else ""
        print_progress(f"Montage {arguments.show}{left_out}")
    unread = any(prediction.reason is not None for prediction in predictions)
    return ExitCode.CHECK_FAILED if unread else ExitCode.SUCCESS
