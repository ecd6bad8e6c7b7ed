"""The compilations of a fit on the page, and their findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.findings import compilations
from tests.findings.compilations import BROKEN, SKIPPED, analyzed


def test_the_page_shows_functions_recompilations_and_findings(open_page: Any, tmp_path: Path) -> None:
    report = compilations.recompiling(tmp_path)
    assert report.compilation is not None
    page = open_page(report).page
    text = page.inner_text("main")
    for part in ("Compilation", "Recompilations", "2 recompilations: 8.00 s", "forward (model.py:24)", "7 to 90"):
        assert part in text
    titles = page.eval_on_selector_all(".stack-bar > span[title]", "spans => spans.map(span => span.title)")
    assert any(title.startswith("first step: 2.00 s") for title in titles)
    assert any(title.startswith("later steps: 8.00 s") for title in titles)


def test_the_page_shows_graph_breaks_and_skipped_graphs(open_page: Any, tmp_path: Path) -> None:
    report = analyzed(tmp_path, *BROKEN, *SKIPPED)
    text = open_page(report).page.inner_text("main")
    for part in ("model.py:31", "if scale.item() > 1:", "Without a CUDA graph", "mutated inputs"):
        assert part in text
