"""The ``compare`` command."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from lightning_perf import ExitCode
from lightning_perf.arguments import add_count, add_list, describe, share
from lightning_perf.compare import EXIT_CODES
from recipes.signlang.commands.options import (
    MODELS,
    add_data_arguments,
    add_optimizer_arguments,
    add_path,
    print_progress,
)
from recipes.signlang.settings import PRECISIONS, InputKind, SplitKind, TrainSettings

HELP = "Train in several precisions, repeatedly and in random order, and compare time and accuracy."

_ON_CPU = {"model": "cnn", "image_size": 32}
_ON_DEVICE = {"model": "resnet50", "image_size": 200}
"""The article's training, and one that a CPU finishes in minutes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options."""
    describe(
        parser,
        HELP,
        usage="[OPTIONS]",
        examples=(
            "python -m recipes.signlang compare",
            "python -m recipes.signlang compare --precisions 32-true,16-mixed --runs 6",
        ),
        exit_codes={
            **EXIT_CODES,
            ExitCode.INTERRUPTED: "interrupted by Ctrl-C; give the same command again to resume",
        },
    )
    study = parser.add_argument_group("comparison")
    add_list(
        study,
        "--precisions",
        kind=_precision,
        metavar="NAME",
        default=argparse.SUPPRESS,
        help=f"two or more of {', '.join(PRECISIONS)}; the first is the baseline. 32-true has TF32 off, tf32 is FP32 "
        "with TF32 on (default: 32-true,tf32,16-mixed on a GPU with TF32, 32-true,16-mixed on others, "
        "32-true,bf16-mixed on a CPU)",
    )
    add_count(study, "--runs", help="runs per precision that count (default: %(default)s)", default=6)
    study.add_argument(
        "--margin",
        type=share,
        default=0.01,
        metavar="SHARE",
        help="loss of accuracy that does not matter (default: %(default)s)",
    )
    study.add_argument(
        "--goal",
        type=share,
        default=argparse.SUPPRESS,
        metavar="SHARE",
        help="target accuracy for the time to accuracy",
    )
    add_path(
        study,
        "-o",
        "--out",
        help="folder of the study; one that already has it is resumed (default: studies/MODEL-PRECISIONS)",
    )
    data = add_data_arguments(parser)
    add_count(
        data,
        "--image-size",
        help="width and height of the images (default: 200 on a GPU as in the article, 32 on a CPU)",
        least=18,
        metavar="PIXELS",
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--model",
        choices=MODELS,
        default=argparse.SUPPRESS,
        metavar="NAME",
        help=f"{', '.join(MODELS)}; without pretrained weights (default: resnet50 on a GPU as in the article, cnn on "
        "a CPU)",
    )
    add_count(training, "--epochs", help="epochs to train (default: 5, as in the article)", default=5)
    add_optimizer_arguments(training)
    add_count(
        training,
        "--seed",
        help="block n trains with seed N + n, all on the data of seed N (default: %(default)s)",
        default=0,
        least=0,
    )


def run(arguments: argparse.Namespace) -> int:
    """Train and compare with the given options, and return the exit code."""
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
    folder = given.get("out") or Path("studies") / "-".join((settings.model, *precisions))
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
        print(f"Stopped. Give the same command again to resume in {folder}.", file=sys.stderr)  # noqa: T201
        raise


def _precision(name: str) -> str:
    if name not in PRECISIONS:
        raise argparse.ArgumentTypeError(f"unknown precision {name!r}: choose from {', '.join(PRECISIONS)}")
    return name
