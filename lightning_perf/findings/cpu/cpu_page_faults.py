"""The rule for trainings on a processor that return memory to the system in every step and request it again."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import share_of_step, step_ns, worth_it
from lightning_perf.machine.page_faults import KEEP_MEMORY
from lightning_perf.units import format_count, format_duration

__all__ = ["cpu_page_faults"]

LEAST, MOST = 0.5, 1.25
"""Shares of the faults' cost on one thread that a step saves. Several threads share the faults, and freshly cleared
pages evict the step's own data from the caches."""


def cpu_page_faults(analysis: RankAnalysis) -> Finding | None:
    """Find steps in which the system has to clear the same memory again.

    Model: the faults counted before the recording go away, at the cost that was measured there.
    """
    processor = analysis.metadata.processor
    if processor is None or not processor.trains or processor.allocator != "glibc" or not analysis.breakdown.marked:
        return None
    if not processor.page_faults or not processor.page_fault_ns:
        return None
    cost_ns = processor.page_faults * processor.page_fault_ns
    busy_ns = analysis.breakdown.category("host_compute").mean_ns or 0.0
    high_ns = min(MOST * cost_ns, busy_ns)
    if not worth_it(high_ns, analysis):
        return None
    shown_ns = min(cost_ns, busy_ns)  # measured one by one they may cost more than all operators of the step
    settings = " ".join(f"{name}={value}" for name, value in KEEP_MEMORY.items())
    return finding(
        "cpu-page-faults",
        f"Page faults: {format_count(processor.page_faults)} per step, because freed memory is returned to the system",
        (
            (
                f"The system clears each page at its first use, in {format_duration(processor.page_fault_ns)} on this "
                f"machine: {format_duration(shown_ns)} per step, {share_of_step(shown_ns, analysis)}."
            ),
            "glibc returns large blocks when they are freed, and every step frees its activations.",
        ),
        f"Start the training with these environment variables: {settings}. glibc then keeps freed memory, and the "
        "process stays as large as its peak. Or preload jemalloc or tcmalloc.",
        saving_ns=(min(LEAST * cost_ns, high_ns), high_ns),
        step_ns=step_ns(analysis),
        model="The faults go away, which saves half to five quarters of their cost on one thread.",
        rank=analysis.rank,
    )
