"""What has to be in sight: on a phone, beside a chart, and on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_perf.documents import page_json
from tests.page.samples import hand_made_report

PHONE = {"width": 390, "height": 844}


def beyond_edge(opened: Any, table: str) -> list[str]:
    """Headings of a table that are not wholly in sight before anybody scrolls."""
    return [
        cell.inner_text().split("\n")[0]
        for cell in opened.page.locator(f"{table} thead th").all()
        if cell.evaluate(
            "cell => cell.getBoundingClientRect().right > cell.closest('.scroll').getBoundingClientRect().right + 1"
        )
    ]


def test_a_phone_shows_who_waits_for_whom_without_scrolling(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path), view="distributed", viewport=PHONE)
    titles = [title.split("\n")[0] for title in opened.texts("#table-ranks thead th")]
    assert titles[:5] == ["Rank", "Step time", "Own work", "Waits", "Awaited"]
    assert not set(titles[:5]) & set(beyond_edge(opened, "#table-ranks"))
    assert opened.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_the_outcome_by_category_is_in_sight_beside_the_chart(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path)
    document = page_json(report.diff(report))
    opened = open_page(document, kind="diff", viewport={"width": 1280, "height": 900})
    assert opened.texts("#table-diff-categories thead th")[-1] == "Outcome"
    assert beyond_edge(opened, "#table-diff-categories") == []


def test_a_table_longer_than_a_sheet_of_paper_begins_below_its_title(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path), view="kernels", viewport={"width": 717, "height": 1000})
    opened.page.emulate_media(media="print")
    part, row = (
        opened.page.locator(selector).first.evaluate("element => getComputedStyle(element).breakInside")
        for selector in (".part:has(#table-kernels)", "#table-kernels tbody tr")
    )
    assert (part, row) == ("auto", "avoid")
