"""The ``compare`` command: its options."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from lightning_perf.arguments import add_count, share
from lightning_perf.compare import EXIT_CODES
from recipes.signlang.commands.options import (
    MODELS,
    add_data_arguments,
    add_optimizer_arguments,
    add_path,
    print_progress,
)
from recipes.signlang.settings import PRECISIONS, InputKind, SplitKind, TrainSettings

__all__ = ["HELP", "add_arguments", "run"]

HELP = "Train in several precisions, repeatedly and in random order, and compare time and accuracy."

_ON_CPU = {"model": "cnn", "image_size": 32}
_ON_DEVICE = {"model": "resnet50", "image_size": 200}
"""What the article trained, and what a CPU does in minutes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = EXIT_CODES
    study = parser.add_argument_group("comparison")
    study.add_argument(
        "--precisions",
        nargs="+",
        choices=PRECISIONS,
        metavar="PRECISION",
        default=argparse.SUPPRESS,
        help=f"of {', '.join(PRECISIONS)}; the first is the baseline. 32-true is true FP32, tf32 the same with TF32 "
        "(default: 32-true tf32 16-mixed on a GPU with TF32, 32-true 16-mixed on others, 32-true bf16-mixed on a CPU)",
    )
    add_count(study, "--runs", "runs of each that count", default=6)
    study.add_argument(
        "--margin", type=share, default=0.01, metavar="SHARE", help="loss of accuracy that does not matter"
    )
    study.add_argument(
        "--goal", type=share, default=argparse.SUPPRESS, metavar="SHARE", help="accuracy for the time to accuracy"
    )
    add_path(
        study, "--study-dir", "where everything goes (default: studies/MODEL-PRECISIONS). A study that is there goes on"
    )
    data = add_data_arguments(parser)
    add_count(
        data,
        "--image-size",
        "width and height of the pictures (default: 200 on a GPU as in the article, 32 on a CPU)",
        least=18,
        metavar="PIXELS",
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--model",
        choices=MODELS,
        default=argparse.SUPPRESS,
        help="without pretrained weights (default: resnet50 on a GPU as in the article, cnn on a CPU)",
    )
    add_count(training, "--epochs", "passes over the training pictures, as in the article", default=5)
    add_optimizer_arguments(training)
    add_count(training, "--seed", "block n trains with seed N + n, all on the data of N", default=0, least=0)


def run(arguments: argparse.Namespace) -> int:
    """Compare as the options say."""
    from lightning_perf.compare import report_errors
    from recipes.signlang.comparison import Experiment, run_experiment, runnable_precisions
    from recipes.signlang.machine import find_device

    given = vars(arguments)
    device = find_device(arguments.accelerator)
    precisions = runnable_precisions(given.get("precisions"), device, print_progress)
    chosen = {**(_ON_CPU if device.kind == "cpu" else _ON_DEVICE), **given}
    kinds = {"split": SplitKind(arguments.split), "input": InputKind(arguments.input), "data_seed": arguments.seed}
    training = {field.name: chosen[field.name] for field in fields(TrainSettings) if field.name in chosen} | kinds
    settings = TrainSettings(**training)
    folder = given.get("study_dir") or Path("studies") / "-".join((settings.model, *precisions))
    experiment = Experiment(
        precisions=precisions,
        runs=arguments.runs,
        training=settings,
        margin=arguments.margin,
        goal=given.get("goal"),
        folder=folder.absolute(),
    )
    try:
        return report_errors(lambda: run_experiment(experiment, device, print_progress))
    except KeyboardInterrupt:
        print(f"Stopped. Give the same command again to go on in {folder}.", file=sys.stderr)  # noqa: T201
        raise
