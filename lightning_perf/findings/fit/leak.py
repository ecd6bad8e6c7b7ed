"""The rule for memory that grows from step to step."""

from __future__ import annotations

from lightning_perf.analysis.steps.memory_growth import MemoryGrowth, TensorGrowth
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.fit.fit_finding import times
from lightning_perf.units import format_bytes, format_count

__all__ = ["leak"]

NAMED_SHARE = 0.2
"""Share of the growth from which one kind of tensor is named as its cause."""

GRAPHS_PER_STEP = 0.5
"""Tensors with a graph that are added per step, from which on graphs are named as the cause."""


def leak(growth: MemoryGrowth) -> Finding | None:
    """Find memory that grows steadily, and the kind of tensor that grows with it.

    No saving is estimated: the fit fails when the memory is full.
    """
    if not growth.grows:
        return None
    where = "the GPU's tensors" if growth.source == "allocator" else "the process"
    whole = growth.bytes_per_step * (growth.last_step - growth.first_step)
    cause = _cause(growth)
    return Finding(
        kind="leak",
        severity="high",
        title=f"Leak: memory grows by {format_bytes(growth.bytes_per_step)} per step",
        evidence=(
            (
                f"The memory of {where} grows by {format_bytes(whole)} from step {growth.first_step:,} to step "
                f"{growth.last_step:,}, in every quarter of these steps."
            ),
            _sentence(growth, cause),
        ),
        action=(
            "Keep numbers instead of tensors with a graph: self.losses.append(loss.item()) or loss.detach(). Clear "
            "such lists in on_train_epoch_end."
            if cause is None or cause.has_graph
            else "Find the list, dictionary or cache that keeps these tensors, and clear it in on_train_epoch_end."
        ),
        saving_low_ms=None,
        saving_high_ms=None,
        model="",
        rank=growth.rank,
        per="fit",
    )


def _cause(growth: MemoryGrowth) -> TensorGrowth | None:
    """Return the kind of tensor that explains the growth; None if none does."""
    expected = growth.bytes_per_step * growth.counted_steps
    largest = max(growth.tensors, key=lambda row: row.bytes, default=None)
    if largest is not None and largest.bytes >= NAMED_SHARE * expected:
        return largest
    graphs = [row for row in growth.tensors if row.has_graph and row.count >= GRAPHS_PER_STEP * growth.counted_steps]
    return max(graphs, key=lambda row: row.count, default=None)


def _sentence(growth: MemoryGrowth, cause: TensorGrowth | None) -> str:
    if not growth.counted_steps:
        return "The tensors were not counted twice, because the fit ended before the growth had doubled."
    steps = times(growth.counted_steps, "step")
    if cause is None:
        return f"In {steps} no kind of tensor grew as much: look at NumPy arrays, lists and data loaders, too."
    size, per_step = format_bytes(cause.bytes), format_bytes(cause.bytes / growth.counted_steps)
    graph = " They also keep their graphs of autograd alive." if cause.has_graph else ""
    return (
        f"In {steps}, {format_count(cause.count)} more {cause.kind} on {cause.device} hold {size}, {per_step} per step."
        f"{graph}"
    )
