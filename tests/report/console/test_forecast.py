"""The forecast of number formats on the console, in Markdown and in the short report."""

from __future__ import annotations

import io
from dataclasses import replace

from lightning_perf.analysis.precision.forecast import forecast
from lightning_perf.report.build import build_report
from lightning_perf.report.console.short import print_short_report
from tests.analysis.precision.test_forecast import sample

FOUND = forecast([sample("layers.0.up"), sample("lm_head", db=9.25)], precision="bf16-mixed")
REPORT = replace(build_report(()), forecast=FOUND)


def printed() -> str:
    stream = io.StringIO()
    REPORT.print(file=stream, width=100)
    return stream.getvalue()


def test_the_console_has_advice_and_both_tables():
    text = printed()
    assert "FP8 would be safe in 1 of 2 layers. Keep out lm_head: the input gradient" in " ".join(text.split())
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["FP8, current scaling"][3:9] == ["1", "of", "2", "1", "of", "2"]
    assert rows["lm_head"][1:] == ["9", "9", "9", "9", "9", "9", "75.0", "%"]
    assert rows["layers.0.up"][1] == "25"
    assert text.index("lm_head  ") < text.index("layers.0.up  ")  # the worst layer first
    assert "2 sampled steps" not in text
    assert "1 sampled step, 1.0 % of the fit's time" in text


def test_markdown_has_it():
    assert "FP8 would be safe in 1 of 2 layers" in REPORT.to_markdown()


def test_the_short_report_has_the_advice():
    stream = io.StringIO()
    print_short_report(REPORT, None, file=stream, width=100)
    assert "FP8 would be safe in 1 of 2 layers. Keep out lm_head" in " ".join(stream.getvalue().split())
