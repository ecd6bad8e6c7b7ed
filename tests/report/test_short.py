"""The short report of a fit."""

from pathlib import Path

from msgspec.structs import replace

from lightning_perf.report.document import PerfReport
from lightning_perf.report.sections.report import short_blocks
from tests.report.support import input_bound_report
from tests.support.shown import console_text


def printed(report: PerfReport, folder: Path | None = None, width: int = 100) -> list[str]:
    return console_text(short_blocks(report, folder), width).splitlines()


def test_it_has_the_verdict_the_findings_and_the_path(tmp_path: Path) -> None:
    report = input_bound_report(tmp_path, "aten::mm")
    lines = printed(report, Path("my logs/perf"))
    text = " ".join(" ".join(lines).split())
    assert lines[0].startswith("Where  A step takes")
    assert lines[-1] == "Full report: lightning-perf analyze 'my logs/perf'"
    for number, finding in enumerate(report.findings, start=1):
        assert f"{number}. {finding.title} [{finding.kind}]" in text
    assert "(saves " in text
    assert report.findings[0].action in text
    assert not any(evidence in text for evidence in report.findings[0].evidence)


def test_many_findings_and_notes_are_counted(tmp_path: Path) -> None:
    report = input_bound_report(tmp_path, "aten::mm")
    many = replace(report, findings=report.findings[:1] * 7, notes=("one", "two", "three"))
    text = "\n".join(printed(many))
    assert "and 3 more findings" in text
    assert "1 more note in the full report" in text
    assert "Full report:" not in text, "there is no folder"


def test_without_findings_the_verdict_says_why(tmp_path: Path) -> None:
    report = replace(input_bound_report(tmp_path, "aten::mm"), findings=(), notes=())
    text = " ".join(" ".join(printed(report)).split())
    assert report.verdict.why in text
    assert report.verdict.next in text


def test_a_path_is_not_wrapped(tmp_path: Path) -> None:
    folder = Path("/a/very/long/path/" * 6)
    assert printed(input_bound_report(tmp_path, "aten::mm"), folder, width=40)[-1].endswith(str(folder))
