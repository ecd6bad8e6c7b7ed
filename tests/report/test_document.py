"""The short report of a fit."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.errors import ReportError
from lightning_perf.findings.finding import Finding
from lightning_perf.report.build import build_report
from lightning_perf.report.document import SCHEMA_VERSION, PerfReport
from lightning_perf.report.sections.report import short_blocks
from lightning_perf.report.verdict import Verdict
from lightning_perf.run_files.steps import StepSample
from tests.report.support import input_bound_report
from tests.support.shown import console_text
from tests.support.trace_builder import FETCH, TraceBuilder


def full_report() -> PerfReport:
    trace = (
        TraceBuilder()
        .gpu("NVIDIA A100-SXM4-40GB", computeMajor=8, computeMinor=0)
        .step(1, 0, 100)
        .annotation(FETCH, 0, 10)
        .op("aten::mm", 10, 20, types=["float", "float"], dims=[[8, 8], [8, 8]])
        .launch("ampere_sgemm_128x64_nn", call_us=12, call_duration_us=5, start_us=30, duration_us=40)
        .build()
    )
    samples = [StepSample(step, 10**8, 10**7, None, 32, False) for step in range(20)]
    finding = Finding("input-bound", "high", "title", ("evidence",), "action", 1.0, 2.0, "model", 0)
    return PerfReport(
        schema_version=SCHEMA_VERSION,
        tool_version="0",
        sources=trace.sources,
        verdict=Verdict("where", "why", "next"),
        notes=("note",),
        findings=(finding,),
        lead=0,
        ranks=(analyze_rank(trace),),
        distributed=None,
        step_times=summarize_step_times(samples),
    )


def test_round_trip_loses_nothing() -> None:
    report = full_report()
    assert PerfReport.from_json(report.to_json()) == report
    assert list(msgspec.json.decode(report.to_json())) == list(PerfReport.__struct_fields__)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f'"schema_version":{SCHEMA_VERSION}', f'"schema_version":{SCHEMA_VERSION + 1}', "schema version .*upgrade"),
        (f'"schema_version":{SCHEMA_VERSION}', '"schema_version":0', "schema version 0.*again"),
        ('"lead":0', '"lead":"first"', "damaged.*lead"),
        *(("", text, "not a lightning-perf report") for text in ("", "[]", "{}", '{"traceEvents": []}', "\udcff")),
    ],
)
def test_a_document_that_cannot_be_read_is_refused(old: str, new: str, message: str) -> None:
    whole = full_report().to_json(indent=None)
    data = (whole.replace(old, new) if old else new).encode(errors="surrogateescape")
    with pytest.raises(ReportError, match=message):
        PerfReport.from_json(data)


def test_a_notebook_shows_verdict_findings_and_categories_without_markup_from_names(tmp_path: Path) -> None:
    hostile = "<script>evil</script>\u202e"
    report = input_bound_report(tmp_path, hostile)
    report = replace(report, notes=(f"A note on {hostile}.",))
    shown = report._repr_html_()
    assert report.verdict.where in shown
    assert f'<a href="{report.findings[0].page}">input-bound</a>' in shown
    assert "<tr><td>device compute</td><td>500 µs</td><td>50.0 %</td><td>500 µs – 500 µs</td></tr>" in shown
    assert "A note on &lt;script&gt;evil&lt;/script&gt;\\u202e." in shown
    assert len(shown) < 5_000
    assert build_report(())._repr_html_().startswith("<div>")


def test_its_representation_is_one_line(tmp_path: Path) -> None:
    report = input_bound_report(tmp_path, "gemm")
    number = len(report.findings)
    name = "rank0.pt.trace.json"
    assert repr(report) == f"<PerfReport of {name}: {report.verdict.where} {number} finding{'s' * (number > 1)}>"


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
    alone = " ".join(" ".join(printed(replace(report, findings=(), notes=()))).split())
    assert report.verdict.why in alone
    assert report.verdict.next in alone


def test_a_path_is_not_wrapped(tmp_path: Path) -> None:
    folder = Path("/a/very/long/path/" * 6)
    assert printed(input_bound_report(tmp_path, "aten::mm"), folder, width=40)[-1].endswith(str(folder))
