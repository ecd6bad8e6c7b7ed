"""All levers, in the order in which they are tried if nothing is predicted."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.estimates.followed import RULES
from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.levers.lever import Lever
from lightning_perf.tune.levers.loader import BatchSize, FewerMicroBatches, PinnedMemory, Workers
from lightning_perf.tune.levers.model import TF32, ChannelsLast, Compiled, CudnnBenchmark, KeptMemory, MixedPrecision
from lightning_perf.tune.levers.optimizer import FusedOptimizer

LEVERS: tuple[Lever, ...] = (
    Lever("bf16-mixed", "precision", MixedPrecision("bf16-mixed"), RULES["16-bit precision"], probe="bf16"),
    Lever("16-mixed", "precision", MixedPrecision("16-mixed"), RULES["16-bit precision"], probe="fp16"),
    Lever("tf32", "tf32", TF32(), RULES["TF32"], probe="tf32"),
    Lever("channels-last", "layout", ChannelsLast(), RULES["channels last"], probe="channels-last"),
    Lever("fused-optimizer", "optimizer", FusedOptimizer(), RULES["fused optimizer"], probe="fused-optimizer"),
    Lever("keep-memory", "memory", KeptMemory(), RULES["kept memory"]),
    Lever("cudnn-benchmark", "cudnn", CudnnBenchmark(), RULES["cuDNN benchmark"]),
    Lever("workers-1", "workers", Workers(1), RULES["more workers"]),
    Lever("workers-2", "workers", Workers(2), RULES["more workers"]),
    Lever("workers-4", "workers", Workers(4), RULES["more workers"]),
    Lever("workers-8", "workers", Workers(8), RULES["more workers"]),
    Lever("workers-4-prefetch-4", "workers", Workers(4, prefetch=4), RULES["more workers"]),
    Lever("pin-memory", "pinning", PinnedMemory(), RULES["pinned memory"]),
    Lever("fewer-micro-batches", "accumulation", FewerMicroBatches()),
    Lever("compile", "compile", Compiled("default"), RULES["torch.compile"], cost=3.0, probe="compile"),
    Lever(
        "compile-reduce-overhead",
        "compile",
        Compiled("reduce-overhead"),
        RULES["torch.compile"],
        cost=3.0,
        probe="cuda-graph",
    ),
    Lever("compile-max-autotune", "compile", Compiled("max-autotune-no-cudagraphs"), RULES["torch.compile"], cost=10.0),
    Lever("batch-size-x2", "batch-size", BatchSize(2), RULES["larger batch"], changes_training=True, probe="batch"),
    Lever("batch-size-x4", "batch-size", BatchSize(4), RULES["larger batch"], changes_training=True),
)


def find_levers(names: Sequence[str]) -> tuple[Lever, ...]:
    """Return the levers of these names, or all if no name is given.

    Example:
        >>> [lever.name for lever in find_levers(["precision", "channels-last"])]
        ['bf16-mixed', '16-mixed', 'channels-last']
    """
    if not names:
        return LEVERS
    unknown = [name for name in names if not any(name in (lever.name, lever.family) for lever in LEVERS)]
    if unknown:
        raise TuneError(f"unknown lever {unknown[0]!r}; choose from {', '.join(one.name for one in LEVERS)}")
    return tuple(lever for lever in LEVERS if lever.name in names or lever.family in names)


def find_lever(name: str) -> Lever:
    """Return the lever of that name."""
    return next(lever for lever in find_levers([name]) if lever.name == name)
