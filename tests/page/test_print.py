"""The page on paper: every finding is open, and no sheet but the last is half empty."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.report.build import analyze
from tests.page.samples import hand_made_report

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
@pytest.mark.parametrize("view", ["overview", "operators", "kernels", "launches"])
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
