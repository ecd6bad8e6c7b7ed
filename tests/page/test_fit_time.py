"""The time of the whole fit on the page: the bar, its table, the findings, and the comparison of two fits."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from lightning_perf.report.document import PerfReport
from lightning_perf.report.sections.fit_time import COLORS
from lightning_perf.run_files.fit.account import Group
from tests.findings import accounts


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> PerfReport:
    return accounts.faulty("slow-checkpoints", tmp_path_factory.mktemp("fit"))


def test_every_group_has_a_color_of_its_own() -> None:
    assert set(COLORS) == set(get_args(Group))
    assert len(set(COLORS.values())) == len(COLORS)


def test_the_page_shows_the_fit(open_page: Any, report: PerfReport) -> None:
    page = open_page(report).page
    text = page.inner_text("main")
    assert "Time of the whole fit" in text
    assert "Findings of the whole fit" in text
    assert re.search(r"saves .* of the fit", text)
    assert "first step complete after" in text
    titles = page.eval_on_selector_all(".stack-bar > span[title]", "spans => spans.map(span => span.title)")
    assert any(title.startswith("checkpoints: 20.0 s, ") for title in titles)
    assert report.fit_time is not None
    parts = sum(len(group.parts) for group in report.fit_time.groups)
    assert page.locator("table", has_text="Parts of the fit").locator("tbody tr").count() == parts
