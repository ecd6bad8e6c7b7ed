"""The ``train`` command: its options."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from lightning_perf.arguments import add_count
from recipes.signlang.commands.options import MODELS, add_data_arguments, add_optimizer_arguments, add_path
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
    add_count(
        data,
        "--image-size",
        "width and height that pictures are scaled to, or rendered at",
        default=default.image_size,
        least=18,
        metavar="PIXELS",
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
    add_count(training, "--epochs", "passes over the training pictures", default=default.epochs)
    add_optimizer_arguments(training)
    add_count(
        training,
        "--seed",
        "of weights and order, and of synthetic data and split where --data-seed is not given",
        default=default.seed,
        least=0,
    )
    add_count(training, "--data-seed", "of synthetic data and split (default: that of --seed)", least=0)
    add_count(training, "--devices", "how many", default=default.devices)
    training.add_argument("--log-dir", type=Path, default=default.log_dir, metavar="DIR", help="where runs are logged")
    add_path(
        training,
        "--resume",
        "go on from a checkpoint of an interrupted training, with the options of that training",
        metavar="FILE",
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
