from pathlib import Path
from typing import Any

import pytest

import lightning_perf
from lightning_perf.report.document import PerfReport
from tests.analysis.ranks.test_distributed import RECORDED
from tests.conftest import corpus_rows
from tests.report.support import rendered
from tests.support.naive_breakdown import naive_breakdown

ROWS = corpus_rows()


@pytest.mark.corpus
@pytest.mark.skipif(not ROWS, reason="needs the real traces")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
def test_every_real_recording_is_reported(corpus: Path, row: dict[str, Any]) -> None:
    report = lightning_perf.analyze(corpus / "traces" / row["file"])
    assert PerfReport.from_json(report.to_json()) == report
    assert report.verdict.where
    host_alone = not row["kernels"] and not report.ranks[0].breakdown.has_device  # the others: collectives and copies
    for width in (80, 120):
        text, _, _ = rendered(report, width).partition("\nTraces\n")
        assert max(map(len, text.splitlines())) <= width
        for line in text.splitlines():
            # Cut off where there is no room: a figure never is.
            assert not line.rstrip().endswith(("µ…", "m…", "%…"))
        for word in ("device compute", "kernel launch", "Tensor Cores", "GPU", "Launches") if host_alone else ():
            assert word not in text
    for finding in report.findings:
        if finding.saving_high_ms is not None:
            step_ns = report.ranks[0].breakdown.wall.mean_ns
            assert step_ns is not None
            assert finding.saving_high_ms <= step_ns / 1e6


@pytest.mark.corpus
def test_eight_ranks_of_one_run(corpus: Path) -> None:
    folder = corpus / "traces" / "param" / "dlrm_kineto"
    if not folder.is_dir():
        pytest.skip("needs the recording of eight ranks: docs/corpus.md")
    report = lightning_perf.analyze(folder)
    assert [analysis.rank for analysis in report.ranks] == list(range(8))
    for analysis, path in zip(report.ranks, sorted(folder.iterdir()), strict=True):
        ((start_ns, end_ns, by_category),) = naive_breakdown(path)
        breakdown = analysis.breakdown
        assert breakdown.wall.mean_ns == end_ns - start_ns
        for row in breakdown.categories:
            if row.name in by_category:
                assert row.mean_ns == by_category[row.name], row.name
        times = {row.name: row.mean_ns for row in breakdown.categories}
        _, length_us, exposed_us, host_us, _ = RECORDED[analysis.rank or 0]
        expected = [time * 1000 for time in (length_us, exposed_us, host_us)]
        assert [breakdown.wall.mean_ns, times["communication"], times["host_compute"]] == expected
    compared = report.distributed
    assert compared is not None
    assert compared.matched_collectives == 8
    assert compared.straggler is not None
    assert compared.awaited is not None
    assert (compared.straggler.rank, compared.awaited.rank) == (5, 7)
