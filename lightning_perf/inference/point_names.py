"""Names of the points of a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["name_points"]

OFFSETS = tuple((x, y) for y in (6, -12, 18, -24, 30, -36, 42, -48, 54, -60) for x in (8, -8))
"""Places beside a point, in points, the best first."""


def name_points(figure: Figure, axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Put names beside their points, each at the first place where it covers no other.

    Args:
        figure: The figure, complete but for the names: where they fit depends on its size and scales.
        axes: The axes that the points are drawn in.
        points: Name and place, in the units of the axes.
    """
    from matplotlib.text import Text

    figure.draw_without_rendering()
    taken: list[Any] = []
    for name, x, y in sorted(points, key=lambda point: (-point[2], point[1])):
        text = None
        for offset in OFFSETS:
            if text is not None:
                text.remove()
            text = axes.annotate(
                name,
                (x, y),
                xytext=offset,
                textcoords="offset points",
                horizontalalignment="left" if offset[0] > 0 else "right",
                fontsize=8,
                arrowprops={"arrowstyle": "-", "color": "#9aa5b1", "lw": 0.5},
                zorder=5,
            )
            text.get_window_extent()  # puts it into its place; what it returns holds the line to the point, too
            box = Text.get_window_extent(text)
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
