"""The options that several commands share, and their progress lines."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_perf.arguments import add_count, positive, share
from recipes.signlang.settings import InputKind, SplitKind, TrainSettings

__all__ = [
    "MODELS",
    "add_checkpoint_argument",
    "add_data_arguments",
    "add_log_dir_argument",
    "add_optimizer_arguments",
    "add_path",
    "print_progress",
]

MODELS = ("resnet18", "resnet34", "resnet50", "cnn", "cnn-bn")
"""The keys of `recipes.signlang.training.model.MODELS`, named here so that ``--help`` need not load torch."""


def add_path(group: argparse._ActionsContainer, name: str, help: str, *, metavar: str = "DIR") -> None:
    """Add an option that takes a path; it is absent from the parsed arguments unless the user gives it.

    Args:
        group: The parser or the group of options.
        name: The option, such as ``--cache-dir``.
        help: Its help text.
        metavar: The name of its value in the help.
    """
    group.add_argument(name, type=Path, metavar=metavar, default=argparse.SUPPRESS, help=help)


def add_data_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options about the data, but for the size of the pictures.

    Returns:
        Their group.
    """
    default = TrainSettings()
    data = parser.add_argument_group("data")
    add_path(
        data,
        "--data",
        "folder or zip of pictures, e.g. the Kaggle zip (see docs/data.md); "
        "without it, a synthetic set of rendered hands is made once and cached",
        metavar="PATH",
    )
    add_path(data, "--cache-dir", "where the synthetic set is kept (default: the user's cache folder)")
    _add_kind(
        data,
        "--split",
        default.split,
        "hold out whole captures, or random pictures as the article did (copies on both sides: too optimistic)",
    )
    data.add_argument(
        "--validation-fraction",
        type=share,
        default=default.validation_fraction,
        metavar="SHARE",
        help="held out of each label",
    )
    add_count(
        data,
        "--copies",
        "numbers that make a capture in the flat layout; 10 in the original (default: told by the data)",
    )
    data.add_argument(
        "--skip-unreadable",
        action="store_true",
        default=argparse.SUPPRESS,
        help="leave damaged pictures out instead of stopping",
    )
    _add_kind(
        data,
        "--input",
        default.input,
        "decode once into memory, or from the files in every epoch, as most input pipelines do",
    )
    data.add_argument(
        "--augment",
        action="store_true",
        default=argparse.SUPPRESS,
        help="rotate and shift training pictures a little: on the device, or in the workers with --input files",
    )
    add_count(data, "--workers", "DataLoader processes (default: chosen by the cores)", least=0)
    return data


def _add_kind(group: argparse._ActionsContainer, name: str, default: SplitKind | InputKind, help: str) -> None:
    group.add_argument(name, choices=[kind.value for kind in type(default)], default=default.value, help=help)


def add_optimizer_arguments(training: argparse._ArgumentGroup) -> None:
    """Add the options about batches, learning rate and accelerator."""
    default = TrainSettings()
    add_count(training, "--batch-size", "pictures a step", default=default.batch_size, least=2)
    training.add_argument("--lr", type=positive, default=default.lr, metavar="RATE", help="learning rate of SGD")
    training.add_argument(
        "--accelerator", default=default.accelerator, choices=("auto", "cpu", "gpu", "mps"), help="what to train on"
    )


def add_checkpoint_argument(group: argparse._ActionsContainer) -> None:
    """Add the option that names the checkpoint of the network."""
    group.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="a .ckpt of a training (default: the newest best one)"
    )


def add_log_dir_argument(group: argparse._ActionsContainer) -> None:
    """Add the option that names the folder to search for the newest checkpoint."""
    group.add_argument(
        "--log-dir",
        type=Path,
        default=TrainSettings().log_dir,
        metavar="DIR",
        help="where to look for the newest without --checkpoint (default: %(default)s)",
    )


def print_progress(line: str) -> None:
    """Print a line to standard error at once."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201
