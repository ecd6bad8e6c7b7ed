"""The common style of all plots: colors, markers, short names, titles, and figures without a window or global state."""

from __future__ import annotations

import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lightning_perf.show.terminal_text import safe

if TYPE_CHECKING:
    from lightning_perf.compare.verdicts.comparison import Arm, Comparison

WIDTH_INCHES = 8.0
NAME_CHARACTERS = 24
NAME_LINES = 3
TITLE_CHARACTERS = 105
INK, FAINT = "#222222", "#8a8a8a"

_LOOKS = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
)
"""Colors that people with a color vision deficiency can distinguish (Okabe and Ito, Color Universal Design, 2008), each
with its own marker."""

_SETTINGS: dict[str, Any] = {
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "white",
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    # The user chooses the names of arms, so a $ in a name is a plain $.
    "text.parse_math": False,
    # The same comparison must give the same file.
    "svg.hashsalt": "lightning_perf",
}


class ArmLook:
    """The color and marker of an arm's runs."""

    def __init__(self, number: int) -> None:
        self.color, self.marker = _LOOKS[number % len(_LOOKS)]

    def points(self, **more: Any) -> dict[str, Any]:
        """Return the arguments for plotting points without a line."""
        look = {
            "color": self.color,
            "marker": self.marker,
            "linestyle": "none",
            "markersize": 6,
            "markeredgewidth": 0.7,
        }
        return look | {"markeredgecolor": "white"} | more


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the settings of all plots while drawing and saving."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)  # type: ignore[arg-type]
        # A character that the font lacks becomes a box in the plot. The console needs no warning about it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def looks(comparison: Comparison) -> dict[str, ArmLook]:
    """Return the color and marker of each arm, by its name."""
    return {arm.name: ArmLook(number) for number, arm in enumerate(comparison.arms)}


def new_figure(height_inches: float) -> Figure:
    """Create an empty figure that pyplot does not manage."""
    return Figure(figsize=(WIDTH_INCHES, height_inches), dpi=150, layout="constrained")


def row_height(names: list[str]) -> float:
    """Return the height in inches that a row needs for the longest name."""
    return 0.42 + 0.17 * max(wrapped(name).count("\n") + 1 for name in names)


def wrapped(name: str, characters: int = NAME_CHARACTERS) -> str:
    """Wrap a name into lines. A very long name loses its middle, since names of runs differ at their ends."""
    text = safe(name)
    room = characters * NAME_LINES - 2
    if len(text) > room:
        text = f"{text[: room // 2]}…{text[-(room // 2) :]}"
    return "\n".join(textwrap.wrap(text, characters, break_on_hyphens=True)) or text


def short_name(name: str, characters: int = 40) -> str:
    """Shorten a name to one line, for legends and titles."""
    text = safe(name)
    return text if len(text) <= characters else f"{text[: characters // 2]}…{text[-(characters // 2 - 1) :]}"


def runs_text(comparison: Comparison) -> str:
    """Return the number of drawn runs per arm, and of runs left out by reason."""
    counts = [arm.used for arm in comparison.arms]
    text = f"n = {counts[0]} per arm" if len(set(counts)) == 1 else "n = " + ", ".join(map(_count, comparison.arms))
    text += ", in blocks" if comparison.blocked else ", not in blocks"
    left_out = sum((Counter(arm.left_out) for arm in comparison.arms), Counter[str]())
    if left_out:
        text += f" (left out: {', '.join(f'{count} {short_name(reason)}' for reason, count in left_out.items())})"
    return text


def _count(arm: Arm) -> str:
    return f"{arm.used} {short_name(arm.name, 24)}"


def finish(figure: Figure, comparison: Comparison, title: str, detail: str | None = None) -> Figure:
    """Add the title to a figure, and below it the runs and the hardware.

    Args:
        title: The title, without the numbers of runs.
    """
    hardware = ", ".join(safe(name) for name in comparison.hardware) or "hardware not recorded"
    small = [f"{runs_text(comparison)} · {hardware}", *([detail] if detail else [])]
    lines = [line for text in small for line in textwrap.wrap(text, TITLE_CHARACTERS)]
    head = 0.48 + 0.18 * len(lines)
    height = figure.get_figheight() + head
    figure.set_figheight(height)
    place: dict[str, Any] = {"ha": "left", "va": "top"}
    figure.text(0.012, 1 - 0.1 / height, title, fontsize=13, fontweight="bold", **place)
    figure.text(0.012, 1 - 0.36 / height, "\n".join(lines), fontsize=9, color="#555555", linespacing=1.35, **place)
    # Leave the rest of the figure to the layout.
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.08, rect=(0, 0, 1, 1 - head / height))
    return figure


def hide_frame(axes: Any, *, grid: str = "x") -> None:
    """Remove the frame of a plot and keep a light grid."""
    for side in ("top", "right", "left" if grid == "x" else ""):
        if side:
            axes.spines[side].set_visible(False)
    axes.grid(axis=grid)
    axes.tick_params(length=0)


def number_axis(axis: Any, count: int = 6) -> None:
    """Show plain numbers on an axis, without exponents or offsets."""
    axis.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}".replace("-", "−")))
