"""The time of the whole fit on the page: the bar, its table, the findings, and the comparison of two fits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.steps.fit_time import summarize_account
from lightning_perf.findings.registry import find_in_fit
from lightning_perf.report.document import PerfReport
from tests.findings import accounts

ASSETS = Path(__file__).parents[2] / "lightning_perf" / "page" / "assets"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> PerfReport:
    return accounts.saving(tmp_path_factory.mktemp("fit"))


def test_every_group_has_a_color_of_its_own() -> None:
    from typing import get_args

    from lightning_perf.run_files.fit.account import Group

    script = (ASSETS / "report" / "sections" / "fit_time.js").read_text(encoding="utf-8")
    table = re.search(r"const COLORS = \{(.*?)\};", script, re.DOTALL)
    assert table is not None
    colors = dict(re.findall(r'^  "?([a-z -]+?)"?: "(\w+)",$', table[1], re.MULTILINE))
    assert set(colors) == set(get_args(Group))
    assert len(set(colors.values())) == len(colors)


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


def test_findings_of_the_page_are_those_of_the_rules(report: PerfReport) -> None:
    made = accounts.account({("checkpoints", "gather"): (4.0, 20), ("checkpoints", "write"): (16.0, 20)})
    assert report.fit_findings == find_in_fit(summarize_account(made))
