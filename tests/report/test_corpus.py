from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import lightning_perf
from lightning_perf.report.console import print_report
from lightning_perf.report.document import from_json, to_json
from tests.conftest import corpus_rows

ROWS = corpus_rows()


@pytest.mark.corpus
@pytest.mark.skipif(not ROWS, reason="needs the real traces")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
def test_every_real_recording_is_reported(corpus: Path, row: dict[str, Any]) -> None:
    report = lightning_perf.analyze(corpus / "traces" / row["file"])
    assert from_json(to_json(report)) == report
    assert report.verdict.where
    for width in (80, 120):
        file = io.StringIO()
        print_report(report, file=file, width=width)
        text, _, _ = file.getvalue().partition("\nTraces\n")
        assert max(map(len, text.splitlines())) <= width
        for line in text.splitlines():
            # Cut off where there is no room: a figure never is.
            assert not line.rstrip().endswith(("µ…", "m…", "%…"))
    for finding in report.findings:
        if finding.saving_high_ms is not None:
            step_ns = report.ranks[0].breakdown.wall.mean_ns
            assert step_ns is not None
            assert finding.saving_high_ms <= step_ns / 1e6


@pytest.mark.corpus
@pytest.mark.skipif(not ROWS, reason="needs the real traces")
@pytest.mark.parametrize("row", [row for row in ROWS if not row["kernels"]], ids=lambda row: row["file"])
def test_a_recording_of_the_host_alone_has_no_device_rows(corpus: Path, row: dict[str, Any]) -> None:
    report = lightning_perf.analyze(corpus / "traces" / row["file"])
    if report.ranks[0].breakdown.has_device:
        return  # collectives and copies, without kernels
    file = io.StringIO()
    print_report(report, file=file, width=100)
    for word in ("device compute", "kernel launch", "Tensor Cores", "GPU", "Launches"):
        assert word not in file.getvalue()
