"""All levers, in the order in which they are tried if nothing is predicted."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.levers.lever import Lever
from lightning_perf.tune.levers.loader import BatchSize, FewerMicroBatches, PinnedMemory, Workers
from lightning_perf.tune.levers.model import TF32, ChannelsLast, Compiled, CudnnBenchmark, KeptMemory, MixedPrecision
from lightning_perf.tune.levers.optimizer import FusedOptimizer

_PRECISION = ("half-precision", "tensor-cores", "cpu-bf16")
_COMPILE = ("launch-bound", "small-kernels")
_BATCH_SIZE = ("memory-spare", "cpu-overhead")

LEVERS: tuple[Lever, ...] = (
    Lever("bf16-mixed", "precision", MixedPrecision("bf16-mixed"), _PRECISION, probe="bf16"),
    Lever("16-mixed", "precision", MixedPrecision("16-mixed"), _PRECISION, probe="fp16"),
    Lever("tf32", "tf32", TF32(), ("tf32-off",), probe="tf32"),
    Lever("channels-last", "layout", ChannelsLast(), ("channels-last", "cpu-channels-last"), probe="channels-last"),
    Lever("fused-optimizer", "optimizer", FusedOptimizer(), ("unfused-optimizer",), probe="fused-optimizer"),
    Lever("keep-memory", "memory", KeptMemory(), ("cpu-page-faults",)),
    Lever("cudnn-benchmark", "cudnn", CudnnBenchmark(), ("cudnn-benchmark",)),
    Lever("workers-1", "workers", Workers(1), ("input-bound",)),
    Lever("workers-2", "workers", Workers(2), ("input-bound",)),
    Lever("workers-4", "workers", Workers(4), ("input-bound",)),
    Lever("workers-8", "workers", Workers(8), ("input-bound",)),
    Lever("workers-4-prefetch-4", "workers", Workers(4, prefetch=4), ("input-bound",)),
    Lever("pin-memory", "pinning", PinnedMemory(), ("pageable-copies",)),
    Lever("fewer-micro-batches", "accumulation", FewerMicroBatches()),
    Lever("compile", "compile", Compiled("default"), _COMPILE, cost=3.0, probe="compile"),
    Lever("compile-reduce-overhead", "compile", Compiled("reduce-overhead"), _COMPILE, cost=3.0, probe="cuda-graph"),
    Lever("compile-max-autotune", "compile", Compiled("max-autotune-no-cudagraphs"), _COMPILE, cost=10.0),
    Lever("batch-size-x2", "batch-size", BatchSize(2), _BATCH_SIZE, changes_training=True, probe="batch"),
    Lever("batch-size-x4", "batch-size", BatchSize(4), _BATCH_SIZE, changes_training=True),
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
