"""``lightning-perf infer``: measure the variants of a trained model, or time untrained backbones."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import (
    add_count,
    add_list,
    add_outputs,
    add_printed_list,
    at_least,
    describe,
    input_shape,
    positive,
    progress_printer,
    share_or_zero,
    show,
    thread_count,
)
from lightning_perf.errors import ExitCode, UserError

if TYPE_CHECKING:
    from lightning_perf.inference.model import Samples
    from lightning_perf.inference.results.tradeoff import Tradeoff

HELP = "measure variants of a trained model: accuracy, latency, size"

SWEEP_FILE = "sweep.json"
"""The document of ``--backbones``, in the folder of ``--out``."""

_NOT_FOR_BACKBONES = ("model", "module", "data", "variants", "html", "max_latency_ms", "max_accuracy_drop")
"""Options that only apply to a trained model."""

INFER_EXIT_CODES = {
    ExitCode.SUCCESS: "measured; with limits, at least one variant keeps them",
    ExitCode.CHECK_FAILED: "no variant keeps the limits",
}
"""The meanings of the exit codes of ``infer``, also in the recipe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Build variants of a trained model (compiled, exported, int8, pruned), check each one against the original "
        "on held-out data, and measure them alternately.\n\n"
        "With --backbones, time networks of torchvision and timm with random weights instead. Weights do not change "
        "the time, so you can choose a shortlist before you train. Nothing is downloaded.",
        usage="[OPTIONS] [MODEL]",
        examples=(
            "lightning-perf infer best.ckpt --module mypackage:Model \\",
            "    --data mypackage:Data --max-latency-ms 5 --max-accuracy-drop 0.01",
            "lightning-perf infer mypackage:make_model --shape 3,224,224 \\",
            "    --variants compile,onnxruntime-int8",
            "lightning-perf infer --backbones resnet18,mobilenet_v2 --shape 1,64,64",
        ),
        exit_codes={
            **INFER_EXIT_CODES,
            ExitCode.CHECK_FAILED: "no variant keeps the limits; with --backbones, no backbone could be timed",
        },
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a .ckpt file, with --module; or package.module:name of a module, or of a function without arguments "
        "that returns one",
    )
    parser.add_argument("--module", metavar="PKG:CLASS", help="the LightningModule class of the checkpoint")
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        metavar="PKG:NAME",
        help="package.module:name of a LightningDataModule (its training data calibrates and fine-tunes), of a "
        "DataLoader or Dataset of held-out (input, label) pairs, or of a function without arguments that returns one",
    )
    data.add_argument(
        "--shape",
        type=input_shape,
        metavar="C,H,W",
        help="shape of one input, to measure only latency and size without --data (default for --backbones: 3,224,224)",
    )
    add_count(data, "--limit", help="held-out inputs to use at most (default: %(default)s)", default=2000)
    add_count(data, "--calibration", help="training inputs for int8 calibration (default: %(default)s)", default=256)
    add_count(data, "--fine-tune-epochs", help="training epochs after a change such as pruning (default: 1)", default=1)
    backbones = parser.add_argument_group("backbones")
    add_list(
        backbones,
        "--backbones",
        metavar="NAME",
        default=None,
        if_empty=(),
        help="time untrained models of torchvision or timm, e.g. resnet18,timm:mobilenetv4_conv_small, with the first "
        "of --batch-sizes and --threads; speeds are relative to the first NAME (without one: twelve from torchvision)",
    )
    add_count(backbones, "--classes", help="outputs of each backbone (default: %(default)s)", default=1000)
    add_measuring(parser)


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Add the options of the measurement and of its results."""
    group = parser.add_argument_group("measurement")
    add_list(
        group,
        "--variants",
        metavar="NAME",
        default=None,
        help="transforms and a runtime joined by +, e.g. onnxruntime-int8,prune-50+onnxruntime (default: those that "
        "need no training)",
    )
    add_printed_list(group, _variant_lines, things="the transforms and runtimes")
    add_list(
        group,
        "-b",
        "--batch-sizes",
        kind=at_least(1),
        default=(1, 32),
        metavar="N",
        help="inputs per call (default: 1,32)",
    )
    add_list(
        group,
        "-t",
        "--threads",
        kind=thread_count,
        default=(1,),
        metavar="N",
        help="CPU threads; 'all' is one per core (default: 1)",
    )
    add_device(group)
    group.add_argument(
        "--seconds",
        type=positive,
        default=3.0,
        metavar="SECONDS",
        help="time for each variant, batch size and number of threads (default: 3)",
    )
    limits = parser.add_argument_group("limits", "The result recommends the best variant that keeps all limits.")
    limits.add_argument("--max-latency-ms", type=positive, metavar="MS", help="largest p90 latency")
    limits.add_argument(
        "--max-accuracy-drop",
        type=share_or_zero,
        metavar="SHARE",
        help="largest loss of accuracy, e.g. 0.01 for one percentage point",
    )
    add_outputs(parser, plot="file", out="keep the built variants and the document (tradeoff.json) there")


def add_device(group: argparse._ActionsContainer) -> None:
    """Add the option for the device of a measurement. `choose_device` reads it."""
    group.add_argument(
        "-d",
        "--device",
        default="auto",
        metavar="DEVICE",
        help="auto, cpu, cuda or cuda:N; auto is the GPU if PyTorch sees one (default: auto)",
    )


def to_points(drop: float | None) -> float | None:
    """Convert a loss of accuracy from a share to percentage points."""
    return None if drop is None else round(100 * drop, 9)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    require_packages(plot=options.plot is not None)
    if options.backbones is not None:
        return _time_backbones(options)
    tradeoff = _measure(options)
    show(tradeoff, options, save_plots=tradeoff.save_plot)
    return exit_code(tradeoff)


def exit_code(tradeoff: Tradeoff) -> int:
    """Return the exit code of a measurement: ``CHECK_FAILED`` if there are limits and no variant keeps them."""
    recommendation = tradeoff.recommendation
    failed = recommendation is not None and recommendation.variant is None
    return ExitCode.CHECK_FAILED if failed else ExitCode.SUCCESS


def require_packages(*, plot: bool) -> None:
    """Check that all needed packages are installed before anything is measured.

    Args:
        plot: Whether a plot was asked for.

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
    """Print a trade-off and write the files that were asked for. One that fails does not stop the others.

    Raises:
        InferenceError: A file cannot be written.
    """
    from lightning_perf.inference.errors import InferenceError

    options = argparse.Namespace(json=as_json, markdown=markdown, html=html, plot=plot, quiet=True)
    try:
        show(tradeoff, options, save_plots=tradeoff.save_plot)
    except UserError as error:
        raise InferenceError(str(error)) from error


def _measure(options: argparse.Namespace) -> Tradeoff:
    from lightning_perf.inference.errors import InferenceError
    from lightning_perf.inference.measurement.measure import Effort
    from lightning_perf.inference.model import choose_device, load_model
    from lightning_perf.inference.run import MeasureOptions, measure_variants
    from lightning_perf.inference.training import FineTuner
    from lightning_perf.inference.variants.variant import parse_variants

    parse_variants(options.variants or ())  # report a wrong name before reading the data
    if options.model is None:
        raise InferenceError("no model: give MODEL, or --backbones to time untrained networks.")
    if options.data is None and options.shape is None:
        raise InferenceError(
            "no validation data: add --data PKG:NAME, or --shape C,H,W to measure only latency and size."
        )
    if options.data is not None and options.shape is not None:
        raise InferenceError("--shape: does not go with --data, which has a shape. Leave one of them out.")
    device = choose_device(options.device)
    module, name = load_model(options.model, options.module)
    samples = _samples(options)
    tuner = FineTuner(samples.training, epochs=options.fine_tune_epochs, device=device)
    return measure_variants(
        module,
        inputs=samples.inputs,
        validation=samples.validation,
        calibration=samples.calibration,
        fine_tune=None if samples.training is None else tuner,
        options=MeasureOptions(
            variants=options.variants,
            batch_sizes=options.batch_sizes,
            threads=options.threads,
            device=device,
            effort=Effort(seconds=options.seconds),
            max_latency_ms=options.max_latency_ms,
            max_accuracy_drop_points=to_points(options.max_accuracy_drop),
            name=name,
            notes=samples.notes,
            out=options.out,
        ),
        on_progress=progress_printer(options.quiet),
    )


def _samples(options: argparse.Namespace) -> Samples:
    """Return the samples of ``--data``, or random inputs of ``--shape``."""
    from lightning_perf.inference.model import gather_samples, noise_samples
    from lightning_perf.lazy_imports import find_object

    if options.shape is None:
        given = find_object(options.data, "--data")
        return gather_samples(given() if callable(given) else given, options.limit, options.calibration)
    return noise_samples(max(options.batch_sizes), options.shape)


def _time_backbones(options: argparse.Namespace) -> int:
    from lightning_perf.inference.backbones import DEFAULT_BACKBONES, sweep_backbones
    from lightning_perf.inference.errors import InferenceError
    from lightning_perf.inference.measurement.measure import Effort
    from lightning_perf.inference.model import choose_device

    for name in _NOT_FOR_BACKBONES:
        if getattr(options, name) is not None:
            option = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
            raise InferenceError(f"{option}: does not go with --backbones. Leave it out.")
    sweep = sweep_backbones(
        options.backbones or DEFAULT_BACKBONES,
        options.shape or (3, 224, 224),
        classes=options.classes,
        batch=options.batch_sizes[0],
        threads=options.threads[0],
        device=choose_device(options.device),
        effort=Effort(seconds=options.seconds),
        on_progress=progress_printer(options.quiet),
    )
    timed = any(row.latency is not None for row in sweep.rows)
    show(sweep, options, save_plots=sweep.save_plot if timed else None, kept_as=SWEEP_FILE)
    return ExitCode.SUCCESS if timed else ExitCode.CHECK_FAILED


def _variant_lines() -> Iterator[str]:
    from lightning_perf.lazy_imports import import_extra

    import_extra("torch", "infer")
    from lightning_perf.inference.runtimes.registry import RUNTIMES
    from lightning_perf.inference.variants.variant import TRANSFORM_NAMES, find_transform

    yield "Runtimes (one per variant, the last part of its name):"
    for runtime in RUNTIMES:
        yield f"  {runtime.name:<26}{runtime.summary}"
    yield "Transforms (any number, before the runtime):"
    for name in TRANSFORM_NAMES:
        yield f"  {name:<26}{find_transform(name).summary}"
