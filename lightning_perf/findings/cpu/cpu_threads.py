"""A training on the processor leaves most of its cores idle."""

from __future__ import annotations

from typing import get_args

from lightning_perf.analysis.host.host_compute import HostKind
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.cpu.cpu_savings import host_saving_ns, rows, time_ns
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import each, share_of_step, step_ns, worth_it
from lightning_perf.units import format_duration

__all__ = ["cpu_threads"]

FEW = 0.5
"""Threads on at most this part of the cores; torch takes all of them by itself."""

IDLE = 0.3
"""At least this part of the cores had nothing to do before the recording: cores that others use win nothing."""

LARGE_NS = 100_000
"""Operators that take less on average are hardly worth dividing."""

LEAST_EFFICIENCY = 0.2
MOST_RATIO = 4.0
"""Of each further core up to four times as many as there are threads, this part at least is won."""


def cpu_threads(analysis: RankAnalysis) -> Finding | None:
    """Find large operators that run on few of the cores that the process may use.

    Of several ranks on one machine each has its part of the cores, which one's recording does not tell. Model: large
    operators get faster by up to as many times as there are cores for a thread; with worker processes of the loader,
    which need cores too, perhaps not at all.
    """
    compute, processor = analysis.host_compute, analysis.metadata.processor
    if compute is None or processor is None or not processor.threads or not processor.cores or processor.load is None:
        return None
    idle = processor.cores - max(processor.load, processor.threads)
    if idle < IDLE * processor.cores or processor.threads > FEW * processor.cores:
        return None
    if (analysis.metadata.world_size or 1) > 1:
        return None
    kinds = [kind for kind in get_args(HostKind) if kind != "other"]
    large = [row for row in rows(compute, *kinds) if row.time_ns >= LARGE_NS * row.calls]
    large_ns = time_ns(large, compute)
    ratio = processor.cores / processor.threads
    has_workers = analysis.loading is not None and analysis.loading.loader == "workers"
    least = 1.0 if has_workers else 1 + LEAST_EFFICIENCY * (min(ratio, MOST_RATIO) - 1)
    low_ns, high_ns = host_saving_ns(analysis, large_ns * (1 - 1 / least), large_ns * (1 - 1 / ratio))
    if not worth_it(high_ns, analysis):
        return None
    threads = "1 thread" if processor.threads == 1 else f"{processor.threads:,} threads"
    return finding(
        "cpu-threads",
        f"Operators run on {threads} of {processor.cores:,} cores",
        (
            (
                f"Large operators take {format_duration(large_ns)} {each(analysis)}, "
                f"{share_of_step(large_ns, analysis)}, and torch divides each among its threads; the load of "
                f"the machine was {processor.load:.1f} before the recording."
            ),
        ),
        f"Call torch.set_num_threads({processor.cores}) before training, less a core for each busy DataLoader worker, "
        "or raise OMP_NUM_THREADS, which torchrun and many clusters set to 1.",
        saving_ns=(low_ns, high_ns),
        step_ns=step_ns(analysis),
        model=f"Large operators speed up {least:.2g} to {ratio:.2g} times.",
        rank=analysis.rank,
    )
