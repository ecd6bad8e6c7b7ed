"""The ``train`` command: its options."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from lightning_perf.arguments import at_least, positive, share
from recipes.signlang.data.split import SplitKind
from recipes.signlang.settings import InputKind, TrainSettings

__all__ = ["HELP", "MODELS", "add_arguments", "add_data_arguments", "add_optimizer_arguments", "run"]

HELP = "Train a sign-language classifier and report where its step time goes."

MODELS = ("resnet18", "resnet34", "resnet50", "cnn")
"""The keys of `recipes.signlang.training.model.MODELS`, named here so that ``--help`` need not load torch."""

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


def add_data_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options about the data, but for the size of the pictures.

    Returns:
        Their group.
    """
    default = TrainSettings()
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        default=argparse.SUPPRESS,
        help="folder or zip of pictures, e.g. the Kaggle zip (see docs/data.md); "
        "without it, a synthetic set of rendered hands is made once and cached",
    )
    data.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="where the synthetic set is kept (default: the user's cache folder)",
    )
    data.add_argument(
        "--split",
        choices=[kind.value for kind in SplitKind],
        default=default.split.value,
        help="hold out whole captures, or random pictures as the article did (copies on both sides: too optimistic)",
    )
    data.add_argument(
        "--validation-fraction",
        type=share,
        default=default.validation_fraction,
        metavar="SHARE",
        help="held out of each label",
    )
    data.add_argument(
        "--copies",
        type=at_least(1),
        metavar="N",
        default=argparse.SUPPRESS,
        help="numbers that make a capture in the flat layout; 10 in the original (default: told by the data)",
    )
    data.add_argument(
        "--skip-unreadable",
        action="store_true",
        default=argparse.SUPPRESS,
        help="leave damaged pictures out instead of stopping",
    )
    data.add_argument(
        "--input",
        choices=[kind.value for kind in InputKind],
        default=default.input.value,
        help="decode once into memory, or from the files in every epoch, as most input pipelines do",
    )
    data.add_argument(
        "--augment",
        action="store_true",
        default=argparse.SUPPRESS,
        help="rotate and shift training pictures a little: on the device, or in the workers with --input files",
    )
    data.add_argument(
        "--workers",
        type=at_least(0),
        metavar="N",
        default=argparse.SUPPRESS,
        help="DataLoader processes (default: chosen by the cores)",
    )
    return data


def add_optimizer_arguments(training: argparse._ArgumentGroup) -> None:
    """Add the options about batches, learning rate and accelerator."""
    default = TrainSettings()
    training.add_argument(
        "--batch-size", type=at_least(2), default=default.batch_size, metavar="N", help="pictures a step"
    )
    training.add_argument("--lr", type=positive, default=default.lr, metavar="RATE", help="learning rate of SGD")
    training.add_argument(
        "--accelerator", default=default.accelerator, choices=("auto", "cpu", "gpu", "mps"), help="what to train on"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train as the options say."""
    from recipes.signlang.training.train import train

    given = vars(arguments)
    chosen = {field.name: given[field.name] for field in fields(TrainSettings) if field.name in given}
    kinds = {"split": SplitKind(arguments.split), "input": InputKind(arguments.input)}
    finished = train(TrainSettings(**{**chosen, **kinds}))
    return 0 if finished is not None else _INTERRUPTED
