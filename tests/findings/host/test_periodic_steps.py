from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lightning_perf
from lightning_perf.findings.finding import Finding
from lightning_perf.report.document import PerfReport
from lightning_perf.trace.description import LOOP_KEY
from tests.findings.test_whole_run import folder, recorded


def run(
    path: Path, *, period: int = 10, extra_us: float = 300_000, steps: int = 120, log_every: int = 10, **changes: Any
) -> PerfReport:
    """A run of steps of 100 ms, every n-th of which takes longer."""
    trace = recorded(60, 60, 60, 60, 60)
    trace.top_level[LOOP_KEY] = {"loggers": ["CSVLogger"], "log_every_n_steps": log_every, **changes}
    # The step log skips five steps at the beginning, and the recorded ones.
    numbers = [number for number in range(5, 5 + steps + 5) if number not in range(100, 105)][:steps]
    times = [(100_000 + (extra_us if number % period == period - 1 else 0), 60.0) for number in numbers]
    return lightning_perf.analyze(folder(path, trace, times))


def found(report: PerfReport) -> Finding | None:
    return next((finding for finding in report.findings if finding.kind == "periodic-steps"), None)


def test_every_tenth_step_when_the_logger_logs(tmp_path: Path) -> None:
    finding = found(run(tmp_path))
    assert finding is not None
    assert finding.title == "Periodic steps: every 10th step takes 300 ms longer, when CSVLogger logs"
    assert "log_every_n_steps is 10: Lightning calls CSVLogger in these steps." in finding.evidence
    assert "Trainer(log_every_n_steps=100)" in finding.action
    assert (finding.saving_low_ms, finding.saving_high_ms) == pytest.approx((15, 30))
    assert finding.severity == "high"  # 22.5 of 130 ms


def test_another_period_than_that_of_the_logger(tmp_path: Path) -> None:
    finding = found(run(tmp_path, period=7, log_every=50))
    assert finding is not None
    assert finding.title == "Periodic steps: every 7th step takes 300 ms longer"
    assert "runs every 7 steps" in finding.action
    assert "CSVLogger" not in " ".join(finding.evidence)


@pytest.mark.parametrize(("extra_us", "fires"), [(30_000, False), (34_000, True)])
def test_from_3_percent_of_the_run_on(tmp_path: Path, extra_us: float, fires: bool) -> None:
    assert (found(run(tmp_path, extra_us=extra_us)) is not None) == fires


def test_a_run_of_even_steps_has_none(tmp_path: Path) -> None:
    assert found(run(tmp_path, extra_us=0)) is None
