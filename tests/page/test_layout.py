"""What has to be in sight: on a phone, beside a chart, and on paper."""

import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.documents import page_json
from lightning_perf.report.build import analyze
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


SHEET_PX = 297 / 25.4 * 96  # A4


def text_heights(pdf: bytes) -> list[float]:
    """The height of the last text on each sheet. Chromium counts it from the top of the first sheet."""
    objects = {int(found[1]): found[2] for found in re.finditer(rb"(\d+) 0 obj(.*?)endobj", pdf, re.DOTALL)}
    sheets: list[float] = []
    for _, body in sorted(objects.items()):
        if re.search(rb"/Type\s*/Page\b", body):
            link = re.search(rb"/Contents (\d+) 0 R", body)
            assert link is not None
            content = objects[int(link[1])]
            packed = content[content.index(b"stream") + 6 : content.rindex(b"endstream")].strip(b"\r\n")
            found = re.findall(rb"(?:[-\d.]+ ){5}([-\d.]+) Tm", zlib.decompress(packed))
            sheets.append(max(float(height) for height in found))
    return sheets


@pytest.mark.corpus
@pytest.mark.parametrize("view", ["overview", "operators", "launches"])
def test_no_sheet_but_the_last_is_half_empty(corpus: Path, open_page: Any, view: str) -> None:
    report = analyze(next((corpus / "traces").glob("kineto/resnet50_num_workers_0/worker0.1623143089861*")))
    opened = open_page(report, view=view)
    opened.draw_charts()
    sheets = text_heights(opened.page.pdf(format="A4", print_background=True))
    assert len(sheets) > 1
    for number, last in enumerate(sheets[:-1]):
        assert last > (number + 0.5) * SHEET_PX


def test_findings_are_open_on_paper_and_folded_again_afterwards(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path)
    second = replace(report.findings[0], title="Another problem", evidence=("Its evidence.",))
    opened = open_page(replace(report, findings=(report.findings[0], second)))
    evidence = opened.page.get_by_text("Its evidence.")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert evidence.is_visible()
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not evidence.is_visible()
