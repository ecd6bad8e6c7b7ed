"""A training on the processor gives its memory back in every step, and takes it anew."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import share_of_step, step_ns, worth_it
from lightning_perf.page_faults import KEEP_MEMORY
from lightning_perf.units import format_count, format_duration

__all__ = ["cpu_page_faults"]

LEAST, MOST = 0.5, 1.25
"""Parts of what faults cost one thread that a step is spared: several threads share them, and pages that the system
has just cleared push the step's own data out of the caches."""


def cpu_page_faults(analysis: RankAnalysis) -> Finding | None:
    """Find steps whose memory the system has to clear anew each time.

    Model: the faults counted before the recording, at the cost that was tried out there, go away altogether.
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
    shown_ns = min(cost_ns, busy_ns)  # tried out one by one they may cost more than all that the step computes
    settings = " ".join(f"{name}={value}" for name, value in KEEP_MEMORY.items())
    return finding(
        "cpu-page-faults",
        f"{format_count(processor.page_faults)} page faults a step: memory is given back, and taken anew",
        (
            (
                f"The system clears a page at its first use, which takes {format_duration(processor.page_fault_ns)} "
                f"here: {format_duration(shown_ns)} a step, {share_of_step(shown_ns, analysis)}."
            ),
            "glibc returns large blocks when they are freed, those of the activations in every step.",
        ),
        f"Start the training with {settings} in the environment: glibc then keeps what is freed, and the process stays "
        "as large as it once was. Or preload jemalloc or tcmalloc.",
        saving_ns=(min(LEAST * cost_ns, high_ns), high_ns),
        step_ns=step_ns(analysis),
        model="The faults go away: half to five quarters of what they cost one thread.",
        rank=analysis.rank,
    )
