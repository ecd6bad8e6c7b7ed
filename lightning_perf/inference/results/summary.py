"""The best variants: those that no other beats in accuracy and latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_perf.inference.measurement.measure import Rounds, speedup
from lightning_perf.inference.results.tradeoff import Cell, Machine, Row

__all__ = [
    "Point",
    "cell_of",
    "condition_notes",
    "pareto_front",
]


@dataclass(frozen=True)
class Point:
    """A candidate.

    Attributes:
        name: Its name.
        cost: What should be small: latency or size; above 0.
        accuracy: What should be large.
    """

    name: str
    cost: float
    accuracy: float


def pareto_front(points: Sequence[Point], tie: float = 0.0) -> tuple[str, ...]:
    """The points that no other beats, the cheapest first.

    One point beats another when it is no less accurate and cheaper by more than a tie, or more accurate and dearer by
    no more than a tie. No point can beat itself round a corner: a chain of such steps never loses accuracy, and along
    steps of equal accuracy the cost falls; so the front is never empty.

    Args:
        points: The candidates.
        tie: Relative difference of cost that measurement cannot tell from none.

    Returns:
        Names.

    Example:
        >>> slow, fast = Point("fp32", 10.0, 0.92), Point("int8", 2.0, 0.91)
        >>> pareto_front([slow, fast, Point("bf16", 12.0, 0.90)])
        ('int8', 'fp32')
    """
    front = [point for point in points if not any(_beats(other, point, tie) for other in points)]
    return tuple(point.name for point in sorted(front, key=lambda point: (point.cost, -point.accuracy)))


def _beats(one: Point, other: Point, tie: float) -> bool:
    cheaper = one.cost * (1 + tie) < other.cost
    no_dearer = one.cost <= other.cost * (1 + tie)
    return (cheaper and one.accuracy >= other.accuracy) or (no_dearer and one.accuracy > other.accuracy)


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
