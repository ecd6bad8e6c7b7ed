"""Options that several commands share, and progress lines."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_perf.arguments import add_count, positive, share
from recipes.signlang.settings import InputKind, SplitKind, TrainSettings

MODELS = ("resnet18", "resnet34", "resnet50", "cnn", "cnn-bn")
"""The keys of `recipes.signlang.training.model.MODELS`, named here so that ``--help`` need not load torch."""


def add_path(group: argparse._ActionsContainer, *flags: str, help: str, metavar: str = "FOLDER") -> None:
    """Add an option that takes a path. It is absent from the parsed arguments unless you give it.

    Args:
        group: The parser or the group of options.
        flags: The option, such as ``--cache-dir``, after its short form if it has one.
        help: Its help text.
        metavar: The name of its value in the help.
    """
    group.add_argument(*flags, type=Path, metavar=metavar, default=argparse.SUPPRESS, help=help)


def add_data_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options for the data, except the image size.

    Returns:
        Their group.
    """
    default = TrainSettings()
    data = parser.add_argument_group("data")
    add_path(
        data,
        "--data",
        help="folder or zip of images, e.g. the Kaggle zip, see docs/data.md (default: a synthetic set of rendered "
        "hands, made once and cached)",
        metavar="PATH",
    )
    add_path(data, "--cache-dir", help="where to keep the synthetic set (default: your cache folder)")
    _add_kind(
        data,
        "--split",
        default.split,
        "hold out whole captures, or random images as the article did. Copies of one image are then on both sides, "
        "so the accuracy is too high",
    )
    data.add_argument(
        "--validation-fraction",
        type=share,
        default=default.validation_fraction,
        metavar="SHARE",
        help="part of each label to hold out (default: %(default)s)",
    )
    add_count(
        data,
        "--copies",
        help="consecutive numbers of one capture in the flat layout, 10 in the original (default: derived from the "
        "data)",
    )
    data.add_argument(
        "--skip-unreadable",
        action="store_true",
        default=argparse.SUPPRESS,
        help="skip damaged images instead of stopping",
    )
    _add_kind(
        data,
        "--input",
        default.input,
        "decode once into memory, or read the files in every epoch as most input pipelines do",
    )
    data.add_argument(
        "--augment",
        action="store_true",
        default=argparse.SUPPRESS,
        help="rotate and shift training images a little: on the device, or in the workers with --input files",
    )
    add_count(data, "--workers", help="DataLoader processes (default: depends on the cores)", least=0)
    return data


def _add_kind(group: argparse._ActionsContainer, name: str, default: SplitKind | InputKind, help: str) -> None:
    choices = [kind.value for kind in type(default)]
    group.add_argument(
        name,
        choices=choices,
        default=default.value,
        metavar=name.removeprefix("--").upper(),
        help=f"{' or '.join(choices)}: {help} (default: %(default)s)",
    )


def add_optimizer_arguments(training: argparse._ArgumentGroup) -> None:
    """Add the options for batch size, learning rate and accelerator."""
    default = TrainSettings()
    add_count(
        training, "--batch-size", help="images per step (default: %(default)s)", default=default.batch_size, least=2
    )
    training.add_argument(
        "--lr", type=positive, default=default.lr, metavar="RATE", help="learning rate of SGD (default: %(default)s)"
    )
    training.add_argument(
        "--accelerator",
        default=default.accelerator,
        choices=("auto", "cpu", "gpu", "mps"),
        metavar="NAME",
        help="auto, cpu, gpu or mps (default: %(default)s)",
    )


def add_checkpoint_argument(group: argparse._ActionsContainer) -> None:
    """Add the option for the checkpoint of the network."""
    group.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="the .ckpt of a training (default: the newest best one below --log-dir)",
    )


def add_log_dir_argument(group: argparse._ActionsContainer) -> None:
    """Add the option for the folder to search for the newest checkpoint."""
    group.add_argument(
        "--log-dir",
        type=Path,
        default=TrainSettings().log_dir,
        metavar="FOLDER",
        help="folder to search without --checkpoint (default: %(default)s)",
    )


def print_progress(line: str) -> None:
    """Print a line to standard error at once."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201
