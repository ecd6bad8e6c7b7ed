"""All levers, in the order in which they are tried where nothing is predicted."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.levers.batch import BatchSize, FewerMicroBatches
from lightning_perf.tune.levers.compiled import Compiled
from lightning_perf.tune.levers.input import PinnedMemory, Workers
from lightning_perf.tune.levers.layout import ChannelsLast, CudnnBenchmark
from lightning_perf.tune.levers.lever import Lever
from lightning_perf.tune.levers.memory import KeptMemory
from lightning_perf.tune.levers.optimizer import FusedOptimizer
from lightning_perf.tune.levers.precision import TF32, MixedPrecision

__all__ = ["LEVERS", "find_lever", "find_levers"]

LEVERS: tuple[Lever, ...] = (
    MixedPrecision("bf16-mixed"),
    MixedPrecision("16-mixed"),
    TF32(),
    ChannelsLast(),
    FusedOptimizer(),
    KeptMemory(),
    CudnnBenchmark(),
    Workers(1),
    Workers(2),
    Workers(4),
    Workers(8),
    Workers(4, prefetch=4),
    PinnedMemory(),
    FewerMicroBatches(),
    Compiled("default"),
    Compiled("reduce-overhead"),
    Compiled("max-autotune-no-cudagraphs"),
    BatchSize(2),
    BatchSize(4),
)


def find_levers(names: Sequence[str]) -> tuple[Lever, ...]:
    """The levers of these names, all where none is given.

    Args:
        names: Names as in the table, or of families.

    Raises:
        TuneError: There is none of a name.

    Example:
        >>> [lever.name for lever in find_levers(["precision", "channels-last"])]
        ['bf16-mixed', '16-mixed', 'channels-last']
    """
    if not names:
        return LEVERS
    unknown = [name for name in names if not any(name in (lever.name, lever.family) for lever in LEVERS)]
    if unknown:
        raise TuneError(f"{unknown[0]}: there is no such lever. There are {', '.join(one.name for one in LEVERS)}.")
    return tuple(lever for lever in LEVERS if lever.name in names or lever.family in names)


def find_lever(name: str) -> Lever:
    """The lever of that name.

    Raises:
        TuneError: There is none.
    """
    return next(lever for lever in find_levers([name]) if lever.name == name)
