"""A document with 50,000 names gives a page of bounded size that opens."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.documents import page_json
from lightning_perf.report.document import PerfReport
from tests.page.samples import hand_made_report
from tests.page.server import ASSETS

MANY = 50_000


@pytest.fixture
def report(tmp_path: Path) -> PerfReport:
    return hand_made_report(tmp_path)


def long(report: PerfReport, rows: int) -> PerfReport:
    """The report with so many operators and kernels on each rank."""
    ranks = []
    for rank in report.ranks:
        tables = {"operators": rank.operators, "kernels": rank.kernels}
        many = {
            name: replace(found, rows=tuple(replace(found.rows[0], name=f"{name}_{n}") for n in range(rows)))
            for name, found in tables.items()
            if found is not None
        }
        ranks.append(replace(rank, **many))
    return replace(report, ranks=tuple(ranks))


def test_a_page_holds_the_most_expensive_rows_and_their_number(report: PerfReport) -> None:
    whole = long(report, MANY)
    page = page_json(whole)
    for row in range(2):
        for name in ("kernels", "operators"):
            *_, table, rest = json.loads(page)["parts"][f"{name}.{row}"]
            assert [cells[0]["text"] for cells in table["rows"]] == [f"{name}_{n}" for n in range(5000)]
            assert rest["text"].startswith(f"… and 45,000 more {name}. lightning-perf analyze PATH --json prints all.")
    assert len(page) < len(whole.to_json(indent=None)) / 4
    assert PerfReport.from_json(page).verdict == report.verdict


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
