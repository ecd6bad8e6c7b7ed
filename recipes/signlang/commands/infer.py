"""The ``infer`` command."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from lightning_perf import ExitCode
from lightning_perf.arguments import add_count, describe, positive, progress_printer
from lightning_perf.commands.infer import INFER_EXIT_CODES, to_points
from lightning_perf.inference import add_measuring
from recipes.signlang.commands.options import (
    MODELS,
    add_checkpoint_argument,
    add_log_dir_argument,
)

HELP = "Build faster and smaller variants of a trained network, and measure accuracy, latency and size."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options."""
    describe(
        parser,
        HELP,
        usage="[OPTIONS]",
        examples=(
            "python -m recipes.signlang infer --max-latency-ms 5 --max-accuracy-drop 0.01",
            "python -m recipes.signlang infer --variants compile,onnxruntime-int8 -o variants",
        ),
        exit_codes=INFER_EXIT_CODES,
    )
    network = parser.add_argument_group("network")
    add_checkpoint_argument(network)
    add_log_dir_argument(network)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", type=Path, metavar="PATH", help="folder or zip of the data (default: that of the training)"
    )
    data.add_argument("--cache-dir", type=Path, metavar="FOLDER", help="where to keep the synthetic set")
    data.add_argument(
        "--unseen",
        action="store_true",
        help="accept --data that is not the data of the training, because the network trained on none of it",
    )
    add_count(data, "--limit", help="held-out images to use at most (default: %(default)s)", default=2000)
    add_count(data, "--calibration", help="training images for int8 calibration (default: %(default)s)", default=256)
    training = parser.add_argument_group("training")
    add_count(
        training,
        "--fine-tune-epochs",
        help="training epochs after a change such as pruning (default: %(default)s)",
        default=3,
    )
    training.add_argument(
        "--student",
        choices=MODELS,
        metavar="MODEL",
        help=f"also train a smaller model ({', '.join(MODELS)}): from the network (distil-MODEL), and without it for "
        "comparison (alone-MODEL)",
    )
    add_count(
        training,
        "--student-epochs",
        help="training epochs of a student (default: %(default)s)",
        default=8,
    )
    training.add_argument(
        "--student-lr",
        type=positive,
        default=0.03,
        metavar="RATE",
        help="highest learning rate of a student (default: %(default)s)",
    )
    add_count(training, "--seeds", help="students of each kind (default: %(default)s)", default=1)
    add_measuring(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure the variants with the given options, and return the exit code."""
    from lightning_perf.compare import MissingExtraError
    from lightning_perf.inference import require_packages

    try:
        require_packages(plot=arguments.plot is not None)
        return _infer(arguments)
    except MissingExtraError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return ExitCode.USAGE


def _infer(arguments: argparse.Namespace) -> int:
    from lightning_perf.inference import InferenceError, exit_code, write_outputs
    from lightning_perf.inference.model import choose_device
    from recipes.signlang.inference.variants import InferSettings, infer
    from recipes.signlang.training.checkpoint import load_checkpoint, newest_checkpoint

    on_progress = progress_printer(arguments.quiet)
    checkpoint = arguments.checkpoint or newest_checkpoint(arguments.log_dir)
    trained = load_checkpoint(checkpoint)
    on_progress(f"Network {trained.model}, {len(trained.classes)} labels, from {checkpoint}")
    given = {
        **vars(arguments),
        "device": choose_device(arguments.device),
        "max_accuracy_drop": to_points(arguments.max_accuracy_drop),
    }
    try:
        settings = InferSettings(**{field.name: given[field.name] for field in fields(InferSettings)})
        tradeoff = infer(trained, settings, on_progress)
        write_outputs(
            tradeoff,
            as_json=arguments.json,
            markdown=arguments.markdown,
            html=arguments.html,
            plot=arguments.plot,
        )
    except InferenceError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return ExitCode.USAGE
    if arguments.out is not None:
        on_progress(
            f"Variants are in {arguments.out}; classify with: python -m recipes.signlang predict --artefact FOLDER"
        )
    return exit_code(tradeoff)
