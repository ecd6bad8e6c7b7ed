"""The ``infer`` command: its options."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from lightning_perf.arguments import add_count, positive
from lightning_perf.inference import add_measuring
from recipes.signlang.commands.options import (
    MODELS,
    add_checkpoint_argument,
    add_log_dir_argument,
    print_progress,
)

__all__ = ["HELP", "add_arguments", "run"]

HELP = "Build faster and smaller variants of a trained network, and measure accuracy, latency and size."

_USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.formatter_class = argparse.HelpFormatter  # the measuring options tell their defaults themselves
    network = parser.add_argument_group("network")
    add_checkpoint_argument(network)
    add_log_dir_argument(network)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", type=Path, metavar="PATH", help="where the data are (default: where they were at the training)"
    )
    data.add_argument("--cache-dir", type=Path, metavar="DIR", help="where the synthetic set is kept")
    data.add_argument(
        "--unseen",
        action="store_true",
        help="none of --data was trained on: take it although it is not what the checkpoint tells of",
    )
    add_count(data, "--limit", "held-out pictures to use (default: %(default)s)", default=2000)
    add_count(data, "--calibration", "training pictures to calibrate int8 with (default: %(default)s)", default=256)
    training = parser.add_argument_group("training")
    add_count(
        training,
        "--fine-tune-epochs",
        "passes over the training pictures after pruning and the like (default: %(default)s)",
        default=3,
    )
    training.add_argument(
        "--student",
        choices=MODELS,
        help="train this model from the network (distil-MODEL) and, to compare, without it (alone-MODEL)",
    )
    add_count(
        training,
        "--student-epochs",
        "passes over the training pictures for a student (default: %(default)s)",
        default=8,
    )
    training.add_argument(
        "--student-lr",
        type=positive,
        default=0.03,
        metavar="RATE",
        help="highest learning rate for a student (default: %(default)s)",
    )
    add_count(training, "--seeds", "students of each kind (default: %(default)s)", default=1)
    add_measuring(parser)


def run(arguments: argparse.Namespace) -> int:
    """Study a network as the options say."""
    from lightning_perf.compare import MissingExtraError
    from lightning_perf.inference import require_packages

    try:
        require_packages(plot=arguments.plot is not None)
        return _infer(arguments)
    except MissingExtraError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return _USAGE


def _infer(arguments: argparse.Namespace) -> int:
    from lightning_perf.inference import InferenceError, exit_code, write_outputs
    from recipes.signlang.inference.variants import InferSettings, infer
    from recipes.signlang.training.checkpoint import load_checkpoint, newest_checkpoint

    checkpoint = arguments.checkpoint or newest_checkpoint(arguments.log_dir)
    trained = load_checkpoint(checkpoint)
    print_progress(f"Network {trained.model}, {len(trained.classes)} labels, from {checkpoint}")
    given = vars(arguments)
    chosen = {field.name: given[field.name] for field in fields(InferSettings)}
    lists = {name: tuple(given[name]) for name in ("batch_sizes", "threads")}
    variants = None if arguments.variants is None else tuple(arguments.variants)
    try:
        tradeoff = infer(trained, InferSettings(**{**chosen, **lists, "variants": variants}), print_progress)
        write_outputs(
            tradeoff,
            as_json=arguments.json,
            markdown=arguments.markdown,
            html=arguments.html,
            plot=arguments.plot,
        )
    except InferenceError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return _USAGE
    if arguments.out is not None:
        print_progress(
            f"Variants are in {arguments.out}; classify with: python -m recipes.signlang predict --artefact FOLDER"
        )
    return exit_code(tradeoff)
