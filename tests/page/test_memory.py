"""The memory of a fit on the page: the peak, other batch sizes, missing memory, and the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_perf.documents import page_json
from tests.report.test_memory_sections import failed, recording

__all__ = ["failed"]


def test_the_view(open_page: Any, failed: Any) -> None:
    opened = open_page(failed, view="memory")
    text = opened.page.inner_text("main")
    for shown in (
        "Rank 0 ran out of memory",
        "Halve batch_size to 4.",
        "net.3 (Linear)",
        "Other batch sizes",
        "has 29 to 32 samples",
    ):
        assert shown in text
    (bar,) = opened.page.locator(".stack-bar").all()
    assert "parameters 4.00 GiB" in bar.get_attribute("aria-label")
    assert "fragmentation 1.00 GiB" in bar.get_attribute("aria-label")
    rows = opened.texts("#table-memory tbody tr")
    assert "aten::linear" in rows[0]
    assert "Net_0" in rows[0]


def test_the_comparison(open_page: Any, tmp_path: Path) -> None:
    compared = recording(tmp_path / "before", 8).diff(recording(tmp_path / "after", 2))
    opened = open_page(page_json(compared), kind="diff")
    text = opened.page.inner_text("main")
    assert "Memory at the peak, device 0" in text
    assert "-6.00" in text
