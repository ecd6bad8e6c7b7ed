"""No violation of WCAG 2.2 AA and of axe's best practices in any view, and targets that a finger hits."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.documents import page_json
from tests.page.samples import hand_made_report, trained_precision
from tests.page.test_views import VIEWS
from tests.page.tradeoff_sample import hand_made_tradeoff

if importlib.util.find_spec("axe_playwright_python") is None:
    pytest.skip("needs axe: pip install axe-playwright-python", allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe

OPTIONS = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}, "skip-link": {"enabled": False}}}
"""The address after ``#`` holds the state of the page, so that axe mistakes links of the menu for links to anchors."""


def violations(page: Any) -> list[str]:
    """The findings of axe: rule, element and reason."""
    if not page.evaluate("'axe' in globalThis"):
        page.evaluate(Axe().axe_script)
    found = page.evaluate("async (options) => (await axe.run(options)).violations", OPTIONS)
    return [
        f"{rule['id']}: {node['html'][:120]} ({node['failureSummary'].splitlines()[-1].strip()[:120]})"
        for rule in found
        for node in rule["nodes"][:3]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_every_view(tmp_path: Path, open_page: Any, width: int, scheme: str) -> None:
    report = hand_made_report(tmp_path, trained_precision())
    found = {}
    for document, kind, views in (
        (report, "run", (*VIEWS, "compare")),
        (page_json(hand_made_tradeoff()), "inference", ("tradeoff", "variants", "layers")),
        (page_json(report.diff(report)), "diff", ("compare",)),
    ):
        viewport = {"width": width, "height": 900}
        opened = open_page(document, kind=kind, viewport=viewport, color_scheme=scheme)
        for view in views:
            opened.show(view)
            opened.draw_charts()
            found[kind, view] = violations(opened.page)
    assert {view: lines for view, lines in found.items() if lines} == {}


def test_controls_can_be_hit_with_a_finger(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path, trained_precision()), viewport={"width": 390, "height": 844})
    small = {}
    for view in VIEWS:
        opened.show(view)
        # Labels within a sentence are an exception of WCAG 2.5.8.
        found = opened.page.evaluate(
            """() => [...document.querySelectorAll("button, select, summary, input, nav a, [role=button]")]
                .filter((item) => !item.matches(".term, .name, .strip-step, input[type=range]"))
                .filter((item) => item.checkVisibility())
                .map((item) => [item.outerHTML.slice(0, 90), item.getBoundingClientRect()])
                .filter(([, box]) => box.width && (box.width < 24 || box.height < 24))
                .map(([html, box]) => `${html} ${box.width}×${box.height}`)"""
        )
        small[view] = sorted(set(found))[:5]
    assert {view: lines for view, lines in small.items() if lines} == {}
