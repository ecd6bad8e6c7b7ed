"""What the measurements of all variants say together: noise, fronts, conditions."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.inference.measure import Rounds, speedup
from lightning_perf.inference.pareto import Point, pareto_front
from lightning_perf.inference.tradeoff import Cell, Machine, Row

__all__ = ["cell_of", "condition_notes"]

BUSY = 0.5
"""Load average from which others are said to have worked: half a processor."""

WAITED = 1.1
"""Wall time over CPU time on one thread from which a call is said to have waited for its processor."""

NOISY = 0.05
"""A/A noise from which it is pointed out."""


def cell_of(rows: Sequence[Row], *, threads: int, batch: int, baseline: Rounds, again: Rounds) -> Cell:
    """Judge one batch size and number of threads.

    Args:
        rows: The variants.
        threads: CPU threads.
        batch: Inputs a call.
        baseline: The turns of the baseline.
        again: The turns of the baseline's twin, in the same rounds.
    """
    noise = speedup(again, baseline)
    ends = [value for value in (noise.value, noise.low, noise.high) if value is not None]
    tie = max((max(value, 1 / value) - 1 for value in ends), default=0.0)
    fast, small = [], []
    for row in rows:
        latency = row.latency(threads, batch)
        if row.reason is not None or latency is None:
            continue
        accuracy = float(row.accuracy.correct) if row.accuracy is not None else 0.0
        fast.append(Point(row.variant, latency.p50_ms, accuracy))
        if row.size_bytes:
            size = row.size_bytes if row.packed_bytes is None else min(row.size_bytes, row.packed_bytes)
            small.append(Point(row.variant, size, accuracy))
    return Cell(threads, batch, noise, tie, pareto_front(fast, tie), pareto_front(small))


def condition_notes(machine: Machine, rows: Sequence[Row], cells: Sequence[Cell]) -> tuple[str, ...]:
    """What a reader must know of the conditions before trusting the figures."""
    notes = []
    if machine.load_before is not None and machine.load_before > BUSY:
        notes.append(
            f"Others were working on this machine: load average {machine.load_before:.2f} before the measurement."
        )
    for cell in cells:
        where = f"batch {cell.batch}, {cell.threads} thread{'s' if cell.threads > 1 else ''}"
        latency = rows[0].latency(cell.threads, cell.batch)
        if machine.device_type == "cpu" and cell.threads == 1 and latency is not None and latency.cpu_ms > 0:
            waited = latency.p50_ms / latency.cpu_ms
            if waited > WAITED:
                notes.append(f"{where}: calls took {waited:.2f} times their CPU time: they waited for the processor.")
        if cell.tie > NOISY:
            notes.append(
                f"{where}: the original measured twice differs by up to {100 * cell.tie:.0f} %; smaller differences "
                "between variants say nothing. Measure on a quiet machine, or with more --seconds."
            )
    return tuple(notes)
