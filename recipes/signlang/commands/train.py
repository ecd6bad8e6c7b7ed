"""The ``train`` command."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from lightning_perf import ExitCode
from lightning_perf.arguments import add_count, describe
from recipes.signlang.commands.options import MODELS, add_data_arguments, add_optimizer_arguments, add_path
from recipes.signlang.settings import InputKind, SplitKind, TrainSettings

HELP = "Train a sign-language classifier and report where its step time goes."

_PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options. Their defaults are those of `TrainSettings`."""
    default = TrainSettings()
    describe(
        parser,
        HELP,
        usage="[OPTIONS]",
        examples=(
            "python -m recipes.signlang",
            "python -m recipes.signlang --data archive.zip --model resnet50 --precision 16-mixed",
        ),
        exit_codes={ExitCode.SUCCESS: "trained"},
    )
    parser.usage = "python -m recipes.signlang [train] [OPTIONS]"
    data = add_data_arguments(parser)
    add_count(
        data,
        "--image-size",
        help="width and height to scale or render images to (default: %(default)s)",
        default=default.image_size,
        least=18,
        metavar="PIXELS",
    )

    training = parser.add_argument_group("training")
    training.add_argument(
        "--precision",
        choices=_PRECISIONS,
        default=default.precision,
        metavar="NAME",
        help=f"{', '.join(_PRECISIONS)}; a CPU runs 16-mixed as bf16-mixed (default: %(default)s)",
    )
    training.add_argument(
        "--tf32",
        choices=("on", "off"),
        default=argparse.SUPPRESS,
        metavar="on|off",
        help="TF32 for FP32 matrix products and convolutions, on GPUs that have it (default: PyTorch's setting)",
    )
    training.add_argument(
        "--model",
        choices=MODELS,
        default=default.model,
        metavar="NAME",
        help=f"{', '.join(MODELS)}; without pretrained weights (default: %(default)s)",
    )
    add_count(training, "--epochs", help="epochs to train (default: %(default)s)", default=default.epochs)
    add_optimizer_arguments(training)
    add_count(
        training,
        "--seed",
        help="seed of weights and order; also of synthetic data and split without --data-seed (default: %(default)s)",
        default=default.seed,
        least=0,
    )
    add_count(training, "--data-seed", help="seed of synthetic data and split (default: --seed)", least=0)
    add_count(training, "--devices", help="number of devices (default: %(default)s)", default=default.devices)
    training.add_argument(
        "--log-dir",
        type=Path,
        default=default.log_dir,
        metavar="FOLDER",
        help="folder of the logs (default: %(default)s)",
    )
    add_path(
        training,
        "--resume",
        help="resume from a checkpoint of an interrupted training; give the options of that training, too",
        metavar="FILE",
    )
    training.add_argument(
        "--no-checkpoints",
        dest="checkpoints",
        action="store_false",
        default=argparse.SUPPRESS,
        help="save no checkpoints",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train with the given options, and return the exit code."""
    from recipes.signlang.training.train import train

    given = vars(arguments)
    chosen = {field.name: given[field.name] for field in fields(TrainSettings) if field.name in given}
    kinds = {"split": SplitKind(arguments.split), "input": InputKind(arguments.input)}
    finished = train(TrainSettings(**{**chosen, **kinds}))
    return ExitCode.SUCCESS if finished is not None else ExitCode.INTERRUPTED
