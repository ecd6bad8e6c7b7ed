"""The colors of the page's charts: apart for every reader, and with one meaning each."""

import itertools
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from lightning_perf.analysis.kernels.arithmetic import ARITHMETICS
from lightning_perf.report.labels import CATEGORY_LABELS, GAP_LABELS, MEMORY_LABELS, PHASE_LABELS
from tests.page.server import ASSETS

FAMILIES = {
    "categories": [name for name in CATEGORY_LABELS if name.split("_")[0] not in ("memcpy", "runtime")]
    + ["memcpy", "runtime"],
    "gaps": list(GAP_LABELS),
    "phases": list(PHASE_LABELS),
    "memory": list(MEMORY_LABELS),
    "arithmetic": list(ARITHMETICS),
    "arms": [f"arm-{i}" for i in range(1, 7)],
    "overlap": ["overlapped", "communication"],
    "limits": ["bound_by_compute", "bound_by_memory"],
    "trade-off": ["original", "accent", "beaten", "good"],
}
"""Colors that stand next to each other in one bar, chart or legend, in any order: parts without time are left out."""

# G. M. Machado, M. M. Oliveira, L. A. F. Fernandes: A Physiologically-based Model for Simulation of Color Vision
# Deficiency. IEEE Transactions on Visualization and Computer Graphics 15 (2009), severity 1.0, for linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}

# Björn Ottosson: A perceptual color space for image processing (2020), https://bottosson.github.io/posts/oklab/.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def palette(theme: str) -> dict[str, str]:
    """The colors of a theme by name, with references replaced."""
    light, _, dark = (ASSETS / "styles" / "colors.css").read_text().partition("@media screen")
    blocks = [light, dark] if theme == "dark" else [light]
    found = dict(pair for block in blocks for pair in re.findall(r"--([\w-]+): (#[0-9a-f]{6}|var\(--[\w-]+\));", block))

    def resolve(name: str) -> str:
        value = found[name]
        return resolve(value[6:-1]) if value.startswith("var(") else value

    return {name: resolve(name) for name in found}


def oklab(color: str, vision: str = "normal") -> NDArray[np.float64]:
    """A color in OKLab × 100, as a reader with this vision sees it."""
    channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen: NDArray[np.float64] = 100 * TO_LAB @ np.cbrt(TO_CONES @ np.clip(VISION[vision] @ linear, 0, 1))
    return seen


def difference(first: str, second: str, vision: str = "normal") -> float:
    return float(np.linalg.norm(oklab(first, vision) - oklab(second, vision)))


def test_the_color_space_is_that_of_its_publication() -> None:
    assert oklab("#ffffff") == pytest.approx([100, 0, 0], abs=0.01)
    assert oklab("#ff0000") == pytest.approx([62.8, 22.5, 12.6], abs=0.1)
    assert difference("#cc6655", "#889944", "normal") > 3 * difference("#cc6655", "#889944", "deuteranopia")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("family", FAMILIES)
def test_colors_of_one_figure_differ_for_every_reader(theme: str, vision: str, family: str) -> None:
    colors = palette(theme)
    close = {
        pair: round(apart, 1)
        for pair in itertools.combinations(FAMILIES[family], 2)
        if (apart := difference(colors[pair[0]], colors[pair[1]], vision)) < 10
    }
    assert close == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_color_has_one_meaning(theme: str) -> None:
    colors = palette(theme)
    names = dict.fromkeys(itertools.chain(*FAMILIES.values()))
    assert len(names) > 40
    same = [pair for pair in itertools.combinations(names, 2) if difference(colors[pair[0]], colors[pair[1]]) < 3]
    assert same == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_color_disappears_in_the_background(theme: str) -> None:
    colors = palette(theme)
    faint = {
        name: ground
        for name, ground, vision in itertools.product(itertools.chain(*FAMILIES.values()), ("panel", "sunken"), VISION)
        if difference(colors[name], colors[ground], vision) < 10
    }
    assert faint == {}
