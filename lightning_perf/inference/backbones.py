"""`sweep_backbones`: time backbones of torchvision and timm with random weights, for one shape of inputs."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from lightning_perf import __version__
from lightning_perf.inference.counting.count import count_model, find_peaks
from lightning_perf.inference.counting.document import Count, bound_latency
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.measurement.measure import Effort, Time, Timed, Timer, speedup, summarise, take_turns
from lightning_perf.inference.measurement.timing import time_calls
from lightning_perf.inference.model import cpu_threads, on_device, usable_device
from lightning_perf.inference.results.tradeoff import SWEEP_VERSION, Sweep, SweepRow
from lightning_perf.inference.run import describe_machine
from lightning_perf.lazy_imports import install_command
from lightning_perf.machine.environment import load_average

_AGAIN = ":again"
"""Suffix of the key of the first backbone's second measurement. No name of a backbone ends with it."""


DEFAULT_BACKBONES = (
    "resnet18",
    "resnet34",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "mnasnet1_0",
    "regnet_y_400mf",
    "densenet121",
)
"""Default backbones: small to medium networks of torchvision."""

_SLOW_START = frozenset({"googlenet", "inception_v3"})
"""Networks of torchvision with a slow initialization of weights that can be skipped."""


Maker = Callable[[], nn.Module]
Shape = tuple[int, int, int]


def make_backbone(name: str, input_shape: Shape, classes: int, batch: int = 1) -> tuple[nn.Module, Count]:
    """Make an untrained backbone in eval mode, with the counts of its forward pass.

    Use ``timm:NAME`` for a name that torchvision and timm both have.
    """
    as_published, for_this_size = _makers(name, input_shape, classes)
    try:
        module = as_published()
    except Exception as error:  # constructors of hundreds of networks raise anything
        raise VariantError(f"it cannot be built ({type(error).__name__}: {error})") from error
    try:
        return module.eval(), count_model(module, input_shape, batch)
    except InferenceError as error:
        problem = error
    try:  # transformers are built for one size of images
        module = for_this_size()
        return module.eval(), count_model(module, input_shape, batch)
    except Exception as error:
        raise VariantError(f"it does not take such inputs: {problem}") from error


def _makers(name: str, shape: Shape, classes: int) -> tuple[Maker, Maker]:
    """Return a function that makes the network as published, and one that makes it for images of this size."""
    package, _, model = name.rpartition(":")
    if package not in ("", "timm", "torchvision"):
        raise VariantError(f"unknown source {package!r}: choose from torchvision, timm")
    channels, height, width = shape
    if package != "timm" and find_spec("torchvision") is not None:
        models = importlib.import_module("torchvision.models")
        if model in models.list_models(module=models):
            more = {"init_weights": False} if model in _SLOW_START else {}
            make = partial(_make_torchvision, models, model, channels, num_classes=classes, **more)
            return make, partial(make, image_size=height)
    if package != "torchvision" and find_spec("timm") is not None:
        timm = importlib.import_module("timm")
        if timm.is_model(model):
            make = partial(timm.create_model, model, pretrained=False, in_chans=channels, num_classes=classes)
            return make, partial(make, img_size=(height, width))
    missing = [one for one in ("torchvision", "timm") if find_spec(one) is None and package in ("", one)]
    install = (
        f". Not installed: {', '.join(missing)}. Install with: {install_command('recipes,timm')}" if missing else ""
    )
    nobody = f"{package} has no" if package else "neither torchvision nor timm has a"
    raise VariantError(f"{nobody} model {model!r}{install}")


def _make_torchvision(models: Any, model: str, channels: int, **settings: Any) -> nn.Module:
    """Make a network of torchvision with another number of input channels; all of them take three."""
    module: nn.Module = models.get_model(model, weights=None, **settings)
    if channels == 3:
        return module
    for parent in module.modules():
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Conv2d) and layer.in_channels == 3:
                settings = {setting: getattr(layer, setting) for setting in ("kernel_size", "stride", "padding")}
                setattr(parent, name, nn.Conv2d(channels, layer.out_channels, bias=layer.bias is not None, **settings))
                return module
    raise ValueError(f"{model} has no convolution with 3 input channels to replace")


def sweep_backbones(
    names: Sequence[str] = DEFAULT_BACKBONES,
    input_shape: Sequence[int] = (3, 224, 224),
    *,
    classes: int = 1000,
    batch: int = 1,
    threads: int = 1,
    device: torch.device | str = "cpu",
    effort: Effort | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Sweep:
    """Time backbones with random weights in eager PyTorch and float32, in alternating rounds.

    Weights do not affect the time, so you can shortlist backbones before you train any of them. Nothing is downloaded.

    Args:
        names: Names for `make_backbone`. Speed-ups are relative to the first one.
        input_shape: Channels, height and width of one input.
        classes: Number of outputs.
        batch: Inputs per call.
        threads: CPU threads.
        device: The device to run on.
        effort: Number and duration of the timed calls.
        on_progress: Called with each line of progress.

    Returns:
        The document. If a backbone fails, its row shows the reason.

    Raises:
        InferenceError: A setting cannot be used.
    """
    on_progress = on_progress or (lambda _: None)
    effort = effort or Effort()
    device = usable_device(device)
    shape = _check(names, input_shape, classes, batch, threads)
    rows = {name: SweepRow(name) for name in dict.fromkeys(names)}
    counts: dict[str, Count] = {}
    timers: dict[str, Timer] = {}
    machine = describe_machine(device)
    inputs = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0)).to(device)

    def fail(name: str, error: VariantError) -> None:
        first = name.removesuffix(_AGAIN)
        rows[first] = replace(rows[first], reason=str(error))

    with cpu_threads(threads), on_device(device), torch.inference_mode():
        for name in rows:
            on_progress(f"Making {name}")
            try:
                module, count = make_backbone(name, shape, classes, batch)
                timers[name] = _timer(module, inputs, device)
            except VariantError as error:
                fail(name, error)
                continue
            counts[name] = count
            rows[name] = replace(
                rows[name],
                parameters=count.parameters,
                macs=count.macs,
                size_bytes=count.size_bytes,
                uncounted=bool(count.uncounted),
            )
        # Use the smallest model's memory: the bound for a model that fits into a cache needs the cache's bandwidth.
        working_set = min((count.compulsory_bytes for count in counts.values()), default=2**28)
        peaks = find_peaks(device, threads, working_set_bytes=working_set)
        first = next(iter(timers), "")
        if timers:
            on_progress(f"Timing {len(timers)} backbones in alternating rounds")
            timers[first + _AGAIN] = timers[first]
        rounds = take_turns(timers, batch, effort, fail)
    again = rounds.pop(first + _AGAIN, ())
    for number, (name, turns) in enumerate(rounds.items()):
        baseline = next(iter(rounds.values())) if number else None
        latency = summarise(turns, baseline, batch=batch, threads=threads)
        bound = bound_latency(counts[name], peaks)
        efficiency = bound.efficiency(latency.p50_ms)
        rows[name] = replace(rows[name], latency=latency, bound_ms=bound.bound_ms, efficiency=efficiency)
    finished = sorted(rows.values(), key=lambda row: math.inf if row.latency is None else row.latency.p50_ms)
    return Sweep(
        schema_version=SWEEP_VERSION,
        tool_version=__version__,
        input_shape=shape,
        classes=classes,
        batch=batch,
        threads=threads,
        machine=replace(machine, load_after=load_average()),
        effort=effort,
        peaks=peaks,
        noise=speedup(again, rounds[first]) if again and first in rounds else None,
        macs_correlation=_correlation(finished),
        rows=tuple(finished),
    )


def _check(names: Sequence[str], input_shape: Sequence[int], classes: int, batch: int, threads: int) -> Shape:
    if not names:
        raise InferenceError("No backbones are given. Name models of torchvision or timm, e.g. resnet18.")
    if len(input_shape) != 3 or min(input_shape) < 1:
        shape = ",".join(map(str, input_shape))
        raise InferenceError(f"The input shape must be channels, height and width, e.g. 3,224,224. Got {shape}.")
    for what, number in (("classes", classes), ("batch", batch), ("threads", threads)):
        if number < 1:
            raise InferenceError(f"{what} must be at least 1, got {number}.")
    channels, height, width = input_shape
    return channels, height, width


def _timer(module: nn.Module, inputs: Tensor, device: torch.device) -> Timer:
    """Return a timer for a backbone, after moving it to the device and running it once."""

    def run(request: Time) -> Timed:
        try:
            return time_calls(module.to(device), inputs, device, request)
        except Exception as error:  # out of memory, or a network that fails only now
            raise VariantError(f"it does not run ({type(error).__name__}: {error})") from error

    run(Time(batch=len(inputs), warmup=1, seconds=0.0, least=0, most=0))
    return run


def _correlation(rows: Sequence[SweepRow]) -> float | None:
    """Return Spearman's rank correlation of MACs and latency."""
    pairs = [(row.macs, row.latency.p50_ms) for row in rows if row.latency is not None and row.macs is not None]
    if len(pairs) < 3:
        return None
    from scipy.stats import spearmanr

    macs, latencies = np.array(pairs, dtype=float).T
    if len(set(macs)) == 1:
        return None
    return float(spearmanr(macs, latencies).statistic)
