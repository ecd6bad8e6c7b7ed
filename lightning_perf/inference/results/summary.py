"""Find the best trade-offs, and describe the conditions of the measurement."""

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
    """A candidate for the Pareto front.

    Attributes:
        name: Name of the candidate.
        cost: Latency or size, above 0: smaller is better.
        accuracy: Accuracy: larger is better.
    """

    name: str
    cost: float
    accuracy: float


def pareto_front(points: Sequence[Point], tie: float = 0.0) -> tuple[str, ...]:
    """Return the names of the points that no other point beats, the cheapest first.

    One point beats another if it is at least as accurate and cheaper by more than a tie. It also beats the other if it
    is more accurate and its cost is at most a tie higher. There are no cycles: a chain of such steps never loses
    accuracy, and along steps of equal accuracy the cost falls. So the front is never empty.

    Args:
        points: The candidates.
        tie: Relative difference of cost that is within the noise of the measurement.

    Returns:
        Names of the points on the front.

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
"""A note mentions other load if the load average is above this: half a processor."""

WAITED = 1.1
"""A note says that calls waited for their processor if wall time over CPU time on one thread is above this."""

NOISY = 0.05
"""A note mentions A/A noise above this."""


def cell_of(rows: Sequence[Row], *, threads: int, batch: int, baseline: Rounds, again: Rounds) -> Cell:
    """Find the noise and the best variants for one batch size and number of threads.

    Args:
        rows: The variants.
        threads: CPU threads.
        batch: Inputs per call.
        baseline: Rounds of the baseline.
        again: Rounds of the baseline's twin.
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
    """Return notes about conditions that make the figures less reliable."""
    notes = []
    if machine.load_before is not None and machine.load_before > BUSY:
        notes.append(
            f"Other processes were using this machine: load average {machine.load_before:.2f} before the measurement."
        )
    for cell in cells:
        where = f"batch {cell.batch}, {cell.threads} thread{'s' if cell.threads > 1 else ''}"
        latency = rows[0].latency(cell.threads, cell.batch)
        if machine.device_type == "cpu" and cell.threads == 1 and latency is not None and latency.cpu_ms > 0:
            waited = latency.p50_ms / latency.cpu_ms
            if waited > WAITED:
                notes.append(
                    f"{where}: calls took {waited:.2f} times their CPU time because they waited for a processor."
                )
        if cell.tie > NOISY:
            notes.append(
                f"{where}: two measurements of the original differ by up to {100 * cell.tie:.0f} %. Smaller "
                "differences between variants are noise. Measure on a quiet machine, or with more --seconds."
            )
    return tuple(notes)
