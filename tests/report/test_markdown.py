"""Markdown of reports: everything that the console shows, and nothing in it is markup."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.report.document import PerfReport
from tests.report.support import input_bound_report
from tests.support.trace_builder import TraceBuilder

HOSTILE = "<script>|evil| \x1b[31m\u202e [y](http://example.com) `code` *bold*"


@pytest.fixture
def report(tmp_path: Path) -> PerfReport:
    return input_bound_report(tmp_path, HOSTILE)


def unescaped(markdown: str) -> str:
    shown = re.sub(r"\[([a-z0-9-]+)\]\(https://github\.com/[^)]+\)", r"\1", markdown)  # links to pages of rules
    return re.sub(r"\\([\\`*_{}\[\]<>|#~$&])", r"\1", shown)


def test_it_has_every_word_and_figure_of_the_console(report: PerfReport) -> None:
    file = io.StringIO()
    report.print(file=file, width=400)
    console, markdown = (
        set(re.sub("[|*▏▎▍▌▋▊▉█]", " ", text).split()) for text in (file.getvalue(), unescaped(report.to_markdown()))
    )
    assert console <= markdown


def test_the_verdict_comes_first_and_tables_are_folded(report: PerfReport) -> None:
    markdown = unescaped(report.to_markdown())
    assert markdown.startswith(f"**Where** {report.verdict.where}\n\n**Why** {report.verdict.why}\n\n**Next** ")
    head, folded = markdown.split("<details>")
    assert all(finding.title in head for finding in report.findings)
    assert "| category | time | share | minimum–maximum |\n|---|---:|---:|---:|\n" in folded
    assert folded.endswith("</details>\n")


def test_rows_have_as_many_cells_as_heads(report: PerfReport) -> None:
    for block in report.to_markdown().split("\n\n"):
        if block.startswith("|"):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_hostile_names_do_nothing(report: PerfReport) -> None:
    for markdown in (report.to_markdown(), report.diff(report).to_markdown()):
        assert "\x1b" not in markdown
        assert "\u202e" not in markdown
        assert not re.search(r"(?<!\\)(<script|\[y|`code|\*bold)", markdown)
        assert re.sub(r"\\(.)", r"\1", markdown).count("<script>")


def test_top_limits_the_tables(tmp_path: Path) -> None:
    builder = TraceBuilder().step(1, 0, 1000)
    for number in range(12):
        builder.op(f"aten::op{number}", 10 + 50 * number, 40)
    report = lightning_perf.analyze(builder.write(tmp_path / "rank0.pt.trace.json"))
    assert report.to_markdown(top=3).count("aten::op") == 3
    assert "… and 9 more operators" in report.to_markdown(top=3)
    assert report.to_markdown(top=20).count("aten::op") == 12


def test_a_diff_shows_categories_at_once(report: PerfReport) -> None:
    head, folded = report.diff(report).to_markdown().split("<details>")
    assert "### By category" in head
    assert "### Operators, host self time" in folded
