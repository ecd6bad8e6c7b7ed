"""A document with 50,000 names gives a page of bounded size that opens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.documents import page_json
from lightning_perf.page import html
from lightning_perf.page.html import render_html
from lightning_perf.report.document import PerfReport
from tests.page.samples import hand_made_report

ASSETS = Path(html.__file__).parent / "assets"
MANY = 50_000


def document(report: PerfReport, rows: int) -> Any:
    """The report as JSON, with tables of so many rows."""
    found = json.loads(page_json(report))
    for rank in found["ranks"]:
        for table in ("kernels", "operators"):
            row = rank[table]["rows"][0]
            rank[table]["rows"] = [{**row, "name": f"{table}_{number}"} for number in range(rows)]
    return found


def shown(page: bytes) -> Any:
    """The document in a page."""
    (text,) = re.findall(rb'id="document"[^>]*>(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


@pytest.fixture
def report(tmp_path: Path) -> PerfReport:
    return hand_made_report(tmp_path)


def test_a_page_holds_the_most_expensive_rows_and_their_number(report: PerfReport) -> None:
    whole = document(report, MANY)
    data = json.dumps(whole).encode()
    page = render_html(data, "run", "many")
    cut = shown(page)
    assert cut.pop("truncated") == {"kernels": MANY, "operators": MANY}
    ranks = list(zip(cut["ranks"], whole["ranks"], strict=True))
    for short, long in ranks:
        for table in ("kernels", "operators"):
            rows = short[table].pop("rows")
            assert rows == long[table].pop("rows")[: html.MOST_ROWS // len(ranks)]
    assert cut == whole
    assert len(page) < len(data) / 4


def test_a_short_document_stays_as_it_is(report: PerfReport) -> None:
    data = report.to_json(indent=None).encode()
    assert html.cut_long_tables(data, 10_000, 10_000) is data


def test_the_page_says_how_many_rows_it_leaves_out(
    report: PerfReport, open_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "MOST_ROWS", 60)
    opened = open_page(json.dumps(document(report, 2000)).encode())
    for view in ("kernels", "operators"):
        opened.show(view)
        assert "The first 30 of 2,000 rows. lightning-perf analyze PATH --json prints all." in opened.page.inner_text(
            "main"
        )


def test_extremes_of_many_values(tab: Any) -> None:
    source = (ASSETS / "core" / "numbers.js").read_text().replace("export ", "")
    code = "const many = Array.from({ length: 1_000_000 }, (_, i) => i);"
    found = tab.evaluate(f"() => {{ {source}; {code} return [largest(many), smallest(many), largest([], 1)]; }}")
    assert found == [999_999, 0, 1]


def test_no_list_of_rows_becomes_arguments() -> None:
    spread = re.compile(r"Math\.(?:max|min)\([^()]*\.\.\.|\.push\(\.\.\.(?!\[)")
    found = {
        path.relative_to(ASSETS).as_posix(): line.strip()
        for path in ASSETS.rglob("*.js")
        for line in path.read_text().splitlines()
        if spread.search(line) and not line.startswith("//")
    }
    assert found == {}
