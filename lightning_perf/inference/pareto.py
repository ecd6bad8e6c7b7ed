"""Which points no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Point", "pareto_front"]


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
