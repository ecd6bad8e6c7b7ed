from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from lightning_perf.inference.results.plot import name_points


def test_names_of_close_points_cover_no_other() -> None:
    pytest.importorskip("matplotlib", reason="needs the compare extra")
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure()
    axes = figure.subplots()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    points = [(f"a name of some length {n}", 0.5 + 0.01 * n, 0.5 + 0.005 * n) for n in range(10)]
    name_points(figure, axes, points)
    texts: list[Any] = list(axes.texts)
    assert {(text.get_text(), *text.xy) for text in texts} == set(points)
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
