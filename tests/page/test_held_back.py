"""What the report holds back is on the page, with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_perf.findings.finding import Finding
from lightning_perf.findings.whole_run import HeldBack
from tests.page.samples import hand_made_report

FINDING = Finding("cpu-bf16", "high", "FP32 <b>products</b>", (), "Train in bf16.", 1.0, 2.0, "", 0, 10.0)


def test_findings_that_are_held_back_are_shown_with_the_reason(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path)
    opened = open_page(report)
    assert "Held back" not in opened.texts("main h2")
    reason = "Estimated while the machine was busy. Record again on a quiet machine."
    opened = open_page(replace(report, held_back=(HeldBack(FINDING, reason),)))
    shown = opened.page.inner_text("main")
    assert "Held back" in shown
    assert f"FP32 <b>products</b>. {reason}" in shown
