"""The command line ``python -m recipes.tinylm``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from lightning_perf import ExitCode
from lightning_perf.arguments import CommandParser, add_count, describe, positive, share_or_zero
from lightning_perf.errors import LocatedError
from recipes.tinylm.settings import Packing, TrainSettings

_PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")


def main(argv: Sequence[str] | None = None) -> int:
    """Train with the given options.

    Args:
        argv: The arguments; None takes those of the process.

    Returns:
        An `ExitCode`. A mistake in the input is a message without a traceback.
    """
    arguments = _parser().parse_args(argv)
    try:
        from recipes.tinylm.train import train  # loads torch, which --help does not need

        given = vars(arguments)
        chosen = {field.name: given[field.name] for field in fields(TrainSettings)}
        train(TrainSettings(**{**chosen, "packing": Packing(arguments.packing)}))
    except LocatedError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.SUCCESS


def _parser() -> argparse.ArgumentParser:
    """Return the parser. The defaults are those of `TrainSettings`."""
    default = TrainSettings()
    parser = CommandParser(prog="python -m recipes.tinylm")
    describe(
        parser,
        "Train a small GPT on generated text and report where its step time goes.",
        usage="[OPTIONS]",
        examples=(
            "python -m recipes.tinylm",
            "python -m recipes.tinylm --packing pack --precision bf16-mixed",
            "python -m recipes.tinylm --layers 12 --heads 12 --width 768 --context 1024 --checkpointing",
        ),
        exit_codes={ExitCode.SUCCESS: "trained"},
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--packing",
        choices=[packing.value for packing in Packing],
        default=default.packing.value,
        metavar="NAME",
        help="how documents form a batch. none: pad them to the longest in the batch; bucket: batch documents of "
        "similar length; pack: join them and cut rows without padding (default: %(default)s)",
    )
    add_count(
        data, "--documents", help="documents to generate (default: %(default)s)", default=default.documents, least=20
    )
    add_count(
        data,
        "--context",
        help="longest sequence in bytes; longer documents are cut (default: %(default)s)",
        default=default.context,
        least=8,
    )
    model = parser.add_argument_group("model")
    add_count(model, "--layers", help="Transformer blocks (default: %(default)s)", default=default.layers)
    add_count(model, "--heads", help="attention heads per block (default: %(default)s)", default=default.heads)
    add_count(
        model,
        "--width",
        help="size of the residual stream, a multiple of --heads (default: %(default)s)",
        default=default.width,
    )
    model.add_argument(
        "--dropout",
        type=share_or_zero,
        default=default.dropout,
        metavar="SHARE",
        help="probability of dropout, also on attention weights (default: %(default)s)",
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
        "--checkpointing",
        action="store_true",
        help="recompute each block in the backward pass instead of keeping its activations",
    )
    add_count(training, "--epochs", help="epochs to train (default: %(default)s)", default=default.epochs)
    add_count(training, "--batch-size", help="sequences per step (default: %(default)s)", default=default.batch_size)
    training.add_argument(
        "--lr", type=positive, default=default.lr, metavar="RATE", help="learning rate of AdamW (default: %(default)s)"
    )
    add_count(
        training,
        "--seed",
        help="seed of text, weights and order (default: %(default)s)",
        default=default.seed,
        least=0,
    )
    training.add_argument(
        "--accelerator",
        default=default.accelerator,
        choices=("auto", "cpu", "gpu", "mps"),
        metavar="NAME",
        help="auto, cpu, gpu or mps (default: %(default)s)",
    )
    training.add_argument(
        "--log-dir",
        type=Path,
        default=default.log_dir,
        metavar="FOLDER",
        help="folder of the logs (default: %(default)s)",
    )
    return parser
