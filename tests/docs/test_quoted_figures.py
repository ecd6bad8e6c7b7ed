"""Figures that the README and the docs quote from `benchmarks/results` are those of the committed results."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.markdown import PAGES, ROOT, prose

_RESULT = re.compile(r"benchmarks/results/[\w/]+\.(?:md|json)")
_FIGURE = re.compile(r"(?<![\w.])(?<![a-zA-Z]-)\d[\d,]*(?:\.\d+)?")
_SHARE = re.compile(r"(\d+)/(\d+)")
_LINK_TARGET = re.compile(r"\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_SCALES = (1, 1e-3, 1e3)
"""A quotation may say ms for µs, or GB for MB."""


def _paragraphs(page: Path) -> Iterator[str]:
    """Return the paragraphs, items of lists, and rows of tables that link to a result."""
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#] ?)", prose(page)):
        if _RESULT.search(paragraph):
            yield " ".join(paragraph.split())


def _figures(text: str) -> list[str]:
    plain = _CODE.sub("", _LINK_TARGET.sub("]", text))
    return [figure.rstrip(",").replace(",", "") for figure in _FIGURE.findall(plain)]


def _values(result: str) -> list[float]:
    values = [float(figure) for figure in _figures(result)]
    shares = [int(part) / int(whole) for part, whole in _SHARE.findall(result) if int(whole)]
    return values + [100 * share for share in (*shares, *values) if share < 1]


def _is_in(figure: str, values: list[float]) -> bool:
    decimals = len(figure.partition(".")[2])
    return any(round(value * scale, decimals) == float(figure) for value in values for scale in _SCALES)


def missing_figures(paragraph: str) -> list[str]:
    """Return the figures of a paragraph that none of its linked results has. One digit alone is never missing."""
    results = [ROOT / name for name in _RESULT.findall(paragraph)]
    values = [value for result in results for value in _values(result.read_text(encoding="utf-8"))]
    return [figure for figure in _figures(paragraph) if len(figure) > 1 and not _is_in(figure, values)]


CITATIONS = [(page, paragraph) for page in PAGES for paragraph in _paragraphs(page)]


@pytest.mark.parametrize(
    ("page", "paragraph"), CITATIONS, ids=[f"{page.name}-{index}" for index, (page, _) in enumerate(CITATIONS)]
)
def test_quoted_figures_are_those_of_the_result(page: Path, paragraph: str) -> None:
    assert missing_figures(paragraph) == []


def test_a_wrong_figure_is_found() -> None:
    row = "A trace of 1 GB takes 6.0 s ([result](benchmarks/results/trace_reading.md))"
    assert missing_figures(row) == []
    assert missing_figures(row.replace("6.0", "98.7654")) != []
