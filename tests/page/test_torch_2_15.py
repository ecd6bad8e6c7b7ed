"""Recordings of torch 2.15 in the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning_perf
from tests.analysis.kernels.test_torch_2_15 import recorded


def test_regions_of_graphs_and_counters_are_shown(tmp_path: Path, open_page: Any) -> None:
    report = lightning_perf.analyze(recorded().write(tmp_path / "trace.json"))
    page = open_page(report, view="launches").page
    rows = [
        [cell.strip() for cell in row.locator("th, td").all_inner_texts()]
        for row in page.locator("#table-regions tbody tr, #table-regions-2 tbody tr").all()
    ]
    assert rows == [
        ["encoder", "2", "400 µs", "78.4 %", "300 µs"],
        ["decoder.norm", "1", "40.0 µs", "7.8 %", "0 ns"],
        ["Power (W)", "0", "400", "300–500", "3"],
        ["SM Active (%)", "1", "80.5", "80.5–80.5", "1"],
    ]
    assert "0.360 J per step" in page.inner_text("main")
