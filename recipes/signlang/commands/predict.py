"""The ``predict`` command: its options."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from lightning_perf.arguments import add_count
from recipes.signlang.commands.options import add_checkpoint_argument, add_log_dir_argument, print_progress

__all__ = ["HELP", "add_arguments", "run"]

HELP = "Classify pictures with a trained network or with an exported variant of it."

_SUCCESS = 0
_UNREADABLE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.usage = None
    parser.epilog = "Exit codes: 0 all classified; 1 some pictures could not be read; 2 wrong usage, or a bad network."
    parser.formatter_class = argparse.HelpFormatter
    parser.add_argument(
        "pictures", nargs="+", type=Path, metavar="PICTURE", help="picture files, folders of them, or zips"
    )
    network = parser.add_argument_group("network")
    which = network.add_mutually_exclusive_group()
    add_checkpoint_argument(which)
    which.add_argument("--artefact", type=Path, metavar="FOLDER", help="a variant that infer --out wrote")
    add_log_dir_argument(network)
    network.add_argument("--device", default="cpu", help="where an artefact runs: cpu, cuda (default: %(default)s)")
    add_count(network, "--threads", "CPU threads of an artefact (default: %(default)s)", default=1)
    output = parser.add_argument_group("output")
    add_count(output, "--top", "labels to tell of each picture (default: %(default)s)", default=1, metavar="K")
    form = output.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="write JSON to standard output")
    form.add_argument("--csv", action="store_true", help="write CSV to standard output")
    output.add_argument(
        "--show", type=Path, metavar="FILE", help="draw the pictures with their labels: .png, .jpg or .webp"
    )


def run(arguments: argparse.Namespace) -> int:
    """Classify as the options say."""
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
    predictions = [  # pictures by the thousand would fill the memory
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
    return _UNREADABLE if any(prediction.reason is not None for prediction in predictions) else _SUCCESS
