"""The ``train`` command: its options."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from lightning_perf.arguments import at_least
from recipes.signlang.commands.options import MODELS, add_data_arguments, add_optimizer_arguments
from recipes.signlang.settings import InputKind, SplitKind, TrainSettings

__all__ = ["HELP", "add_arguments", "run"]

HELP = "Train a sign-language classifier and report where its step time goes."

_INTERRUPTED = 130
"""The shell's exit code of a program that Ctrl-C ended: 128 + SIGINT."""

_PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; their defaults are those of `TrainSettings`."""
    default = TrainSettings()
    data = add_data_arguments(parser)
    data.add_argument(
        "--image-size",
        type=at_least(18),
        default=default.image_size,
        metavar="PIXELS",
        help="width and height that pictures are scaled to, or rendered at",
    )

    training = parser.add_argument_group("training")
    training.add_argument(
        "--precision", choices=_PRECISIONS, default=default.precision, help="16-mixed runs as bf16-mixed on a CPU"
    )
    training.add_argument(
        "--tf32",
        choices=("on", "off"),
        default=argparse.SUPPRESS,
        help="TF32 for what computes in FP32, on GPUs that have it (default: as PyTorch has it)",
    )
    training.add_argument("--model", choices=MODELS, default=default.model, help="without pretrained weights")
    training.add_argument(
        "--epochs", type=at_least(1), default=default.epochs, metavar="N", help="passes over the training pictures"
    )
    add_optimizer_arguments(training)
    training.add_argument(
        "--seed",
        type=at_least(0),
        default=default.seed,
        metavar="N",
        help="of weights and order, and of synthetic data and split where --data-seed is not given",
    )
    training.add_argument(
        "--data-seed",
        type=at_least(0),
        default=argparse.SUPPRESS,
        metavar="N",
        help="of synthetic data and split (default: that of --seed)",
    )
    training.add_argument("--devices", type=at_least(1), default=default.devices, metavar="N", help="how many")
    training.add_argument("--log-dir", type=Path, default=default.log_dir, metavar="DIR", help="where runs are logged")
    training.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="go on from a checkpoint of an interrupted training, with the options of that training",
    )
    training.add_argument(
        "--no-checkpoints", dest="checkpoints", action="store_false", default=argparse.SUPPRESS, help="save none"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train as the options say."""
    from recipes.signlang.training.train import train

    given = vars(arguments)
    chosen = {field.name: given[field.name] for field in fields(TrainSettings) if field.name in given}
    kinds = {"split": SplitKind(arguments.split), "input": InputKind(arguments.input)}
    finished = train(TrainSettings(**{**chosen, **kinds}))
    return 0 if finished is not None else _INTERRUPTED
