"""``lightning-perf infer``: measure the ways to run a model."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import (
    add_count,
    at_least,
    input_shape,
    plot_file,
    positive,
    print_progress,
    within,
    write_output,
)

if TYPE_CHECKING:
    from lightning_perf.inference.results.tradeoff import Tradeoff

__all__ = ["HELP", "add_arguments", "add_measuring", "exit_code", "require_packages", "run", "write_outputs"]

SUCCESS = 0
NONE_FITS = 1

HELP = "measure the ways to run a model: accuracy, latency, size"

_EPILOG = "Exit codes: 0 measured, or a variant keeps the limits; 1 none keeps them; 2 wrong usage, or input of no use."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    parser.description = (
        "Build variants of a trained model (compiled, exported, int8, pruned), check each against the original on "
        "held-out data, and measure them in turns."
    )
    parser.epilog = _EPILOG
    parser.add_argument(
        "model",
        metavar="MODULE_OR_CHECKPOINT",
        help="package.module:name of a module or of what makes one without arguments; or a .ckpt, with --module",
    )
    parser.add_argument("--module", metavar="PKG:CLASS", help="the LightningModule class of the checkpoint")
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        metavar="PKG:NAME",
        help="what gives the data without arguments: a LightningDataModule (calibrates and fine-tunes on its training "
        "data), or a DataLoader or Dataset of held-out (input, label)",
    )
    add_count(data, "--limit", "held-out inputs to use (default: %(default)s)", default=2000)
    add_count(data, "--calibration", "training inputs to calibrate with (default: %(default)s)", default=256)
    add_count(
        data,
        "--fine-tune-epochs",
        "passes over the training data after pruning and the like (default: %(default)s)",
        default=1,
    )
    data.add_argument(
        "--shape",
        type=input_shape,
        metavar="C,H,W",
        help="shape of one input, for latency and size only, without --data",
    )
    add_measuring(parser)


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Add what is measured, and where it goes."""
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--variants",
        nargs="+",
        metavar="NAME",
        help="transforms and a runtime joined by +, as onnxruntime-int8 or prune-50+onnxruntime (default: a choice "
        "that needs no training); a name that there is not lists all",
    )
    group.add_argument(
        "--batch-sizes", nargs="+", type=at_least(1), default=[1, 32], metavar="N", help="inputs a call (default: 1 32)"
    )
    group.add_argument(
        "--threads", nargs="+", type=at_least(1), default=[1], metavar="N", help="CPU threads (default: 1)"
    )
    group.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    group.add_argument(
        "--seconds",
        type=positive,
        default=3.0,
        metavar="S",
        help="time for each variant, batch size and number of threads (default: 3)",
    )
    group.add_argument(
        "--max-latency-ms", type=positive, metavar="MS", help="recommend one that nine calls of ten keep"
    )
    group.add_argument(
        "--max-accuracy-drop",
        type=within(0, 100),
        metavar="POINTS",
        help="recommend one whose accuracy is lower by no more, in percentage points",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="write the whole document as JSON to standard output")
    output.add_argument("--markdown", type=Path, metavar="FILE", help="write it as Markdown, too")
    output.add_argument("--html", type=Path, metavar="FILE", help="write it as a page too, one file that opens offline")
    output.add_argument("--plot", type=plot_file, metavar="FILE", help="write a plot: .png, .svg or .pdf")
    output.add_argument("--out", type=Path, metavar="FOLDER", help="keep the built variants and the document there")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    require_packages(plot=options.plot is not None)
    tradeoff = _measure(options)
    write_outputs(tradeoff, as_json=options.json, markdown=options.markdown, html=options.html, plot=options.plot)
    return exit_code(tradeoff)


def exit_code(tradeoff: Tradeoff) -> int:
    """Return the exit code of a measurement: 1 when there are limits and no variant keeps them, else 0."""
    recommendation = tradeoff.recommendation
    return NONE_FITS if recommendation is not None and recommendation.variant is None else SUCCESS


def require_packages(*, plot: bool) -> None:
    """See that what measuring needs is there, before anything is measured.

    Args:
        plot: Whether a plot is wanted.

    Raises:
        MissingExtraError: A package is not installed.
    """
    from lightning_perf.lazy_imports import import_extra

    for package in ("torch", "scipy", *(("matplotlib",) if plot else ())):
        import_extra(package, "infer")


def write_outputs(
    tradeoff: Tradeoff,
    *,
    as_json: bool = False,
    markdown: Path | None = None,
    html: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Show a trade-off and write the files that were asked for, also when one of them cannot be written.

    Raises:
        InferenceError: A file cannot be written.
    """
    from lightning_perf.inference.errors import InferenceError
    from lightning_perf.page.html import PageError

    with suppress(BrokenPipeError):  # the reader has left; the files are wanted all the same
        if as_json:
            sys.stdout.write(tradeoff.to_json())
        else:
            tradeoff.print()
    problems = []

    def write_markdown(path: Path) -> None:
        write_output(path, tradeoff.to_markdown(), InferenceError)

    for path, write in ((markdown, write_markdown), (html, tradeoff.write_html), (plot, tradeoff.save_plot)):
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path)
            except (InferenceError, PageError) as error:
                problems.append(str(error))
            except OSError as error:
                problems.append(f"{path}: cannot be written ({error.strerror}). Give another file.")
    if problems:
        raise InferenceError(" ".join(problems))


def _measure(options: argparse.Namespace) -> Tradeoff:
    import torch

    from lightning_perf.inference.errors import InferenceError
    from lightning_perf.inference.measurement.measure import Effort
    from lightning_perf.inference.model.samples import gather_samples
    from lightning_perf.inference.model.source import find_object, load_model
    from lightning_perf.inference.run import MeasureOptions, measure_variants
    from lightning_perf.inference.training.fine_tune import FineTuner
    from lightning_perf.inference.variants.variant import parse_variants

    parse_variants(options.variants or ())  # a wrong name is said before the data are read
    if (options.data is None) == (options.shape is None):
        raise InferenceError(
            "no validation data: give --data, or --shape for latency and size alone."
            if options.data is None
            else "--data and --shape exclude each other: the data have a shape."
        )
    module, name = load_model(options.model, options.module)
    inputs = samples = fine_tune = None
    notes = []
    if options.shape is not None:
        inputs = torch.randn(max(options.batch_sizes), *options.shape, generator=torch.Generator().manual_seed(0))
        notes.append(
            "Inputs are noise: latency and size hold, but what int8 and others give for real inputs is unknown."
        )
    else:
        given = find_object(options.data, "--data")
        samples = gather_samples(given() if callable(given) else given, options.limit, options.calibration)
        inputs = samples.inputs
        notes += samples.notes
        if samples.training is not None:
            fine_tune = FineTuner(samples.training, epochs=options.fine_tune_epochs, device=options.device)
    return measure_variants(
        module,
        inputs=inputs,
        validation=samples.validation if samples is not None else None,
        calibration=samples.calibration if samples is not None else None,
        fine_tune=fine_tune,
        options=MeasureOptions(
            variants=options.variants,
            batch_sizes=options.batch_sizes,
            threads=options.threads,
            device=options.device,
            effort=Effort(seconds=options.seconds),
            max_latency_ms=options.max_latency_ms,
            max_accuracy_drop_points=options.max_accuracy_drop,
            name=name,
            notes=notes,
            out=options.out,
        ),
        on_progress=print_progress,
    )
