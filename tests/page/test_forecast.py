"""The forecast of number formats and shadow steps on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_perf.analysis.precision.forecast import forecast
from lightning_perf.analysis.precision.shadow import summarize_shadow
from tests.analysis.precision.test_forecast import sample
from tests.analysis.precision.test_shadow import sample as shadow_sample
from tests.page.samples import hand_made_report


def test_the_page_shows_advice_chart_and_tables(tmp_path: Path, open_page: Any) -> None:
    found = forecast([sample(), sample("lm_head", db=9.2)], precision="bf16-mixed")
    assert found is not None
    report = replace(hand_made_report(tmp_path), forecast=found)
    opened = open_page(report, view="precision")
    shown = opened.page.inner_text("main")
    assert all(line in shown for line in found.advice)
    first = opened.texts("#table-forecast-2 tbody tr:first-child > *")
    assert first[0] == "lm_head"
    assert "9.2" in first
    recipes = opened.texts("#table-forecast tbody tr")
    assert recipes[2].startswith("FP8, current scaling")
    assert "H100 SXM5: 15 to 50 %" in shown or "H100 SXM5" in recipes[2]
    chart = opened.page.locator(".chart").first
    chart.scroll_into_view_if_needed()
    chart.locator("svg.main-svg").first.wait_for()


def test_the_page_shows_shadow_steps(tmp_path: Path, open_page: Any) -> None:
    drift = summarize_shadow([shadow_sample(0, 0.99), shadow_sample(100, 0.95)])
    assert drift is not None
    opened = open_page(replace(hand_made_report(tmp_path), shadow=drift), view="precision")
    shown = opened.page.inner_text("main")
    assert all(line in shown for line in drift.summary)
    assert opened.texts("#table-shadow tbody tr:first-child > *")[:4] == ["body", "0.95000", "100", "0.97000"]
    chart = opened.page.locator(".chart").first
    chart.scroll_into_view_if_needed()
    chart.locator("svg.main-svg").first.wait_for()
