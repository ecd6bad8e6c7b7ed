"""The rule for trainings on a processor that leave most of its cores idle."""

from __future__ import annotations

from typing import get_args

from lightning_perf.analysis.host.host_compute import HostKind
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.cpu.cpu_savings import host_saving_ns, rows, time_ns
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import choose_estimate, each, share_of_step, step_ns, worth_it
from lightning_perf.units import format_duration

__all__ = ["cpu_threads"]

FEW = 0.5
"""Share of the cores up to which threads count as few. By default torch uses all cores."""

IDLE = 0.3
"""Share of the cores that must have been idle before the recording: cores in use by others save nothing."""

LARGE_NS = 100_000
"""Mean time of operators from which it helps to divide them among threads."""

LEAST_EFFICIENCY = 0.2
MOST_RATIO = 4.0
"""Least gain per further core, for up to four times as many cores as threads."""


def cpu_threads(analysis: RankAnalysis) -> Finding | None:
    """Find large operators that run on few of the cores that the process may use.

    Runs of several ranks are left out, since the recording of one does not show its share of the cores. Model: large
    operators speed up in proportion to the cores at most. With worker processes of the loader, which need cores, too,
    they may not speed up at all.
    """
    compute, processor = analysis.host_compute, analysis.metadata.processor
    if compute is None or processor is None or not processor.threads or not processor.cores or processor.load is None:
        return None
    if processor.threads > FEW * processor.cores:
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
    idle = processor.cores - max(processor.load, processor.threads)
    applies = idle >= IDLE * processor.cores and worth_it(high_ns, analysis)
    estimate = choose_estimate(
        analysis,
        "threads",
        (low_ns, high_ns) if applies else None,
        f"Large operators speed up {least:.2g} to {ratio:.2g} times.",
    )
    if estimate is None:
        return None
    threads = "1 thread" if processor.threads == 1 else f"{processor.threads:,} threads"
    return finding(
        "cpu-threads",
        f"Idle cores: operators run on {threads}, and there are {processor.cores:,} cores",
        (
            (
                f"Large operators take {format_duration(large_ns)} {each(analysis)} "
                f"({share_of_step(large_ns, analysis)}), and torch divides each among its threads. The load of the "
                f"machine was {processor.load:.1f} before the recording."
            ),
        ),
        f"Call torch.set_num_threads({processor.cores}) before training, less a core for each busy DataLoader worker. "
        f"Or set OMP_NUM_THREADS={processor.cores}: torchrun and many clusters set it to 1.",
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=estimate.model,
        basis=estimate.basis,
        rank=analysis.rank,
    )
