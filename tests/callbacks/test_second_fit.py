"""A second fit in the same log folder checks the estimate that it followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from msgspec.structs import replace
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfCallback, analyze
from lightning_perf.callbacks.steps.core_use import CoreUse
from lightning_perf.findings.finding import Problem, SavingRange, make_finding
from lightning_perf.machine import processor
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.estimates import ESTIMATES_NAME, find_outcomes
from lightning_perf.run_files.report import write_report
from tests.callbacks.training import failing, make_module, make_trainer


def fit(folder: Path, threads: int, **callback: Any) -> None:
    """Train products that are worth a second thread."""

    def configure(self: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)

    module = make_module(configure_optimizers=configure)
    module.layer = torch.nn.Sequential(torch.nn.Linear(4, 1500), torch.nn.Linear(1500, 1500), torch.nn.Linear(1500, 2))
    data = DataLoader(TensorDataset(torch.zeros(1024, 4), torch.zeros(1024, dtype=torch.long)), 128)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        logger = CSVLogger(folder, name="logs")
        options = {"skip_first": 1, "warmup": 1, "active": 2, "repeat": 1, "report": "none", **callback}
        make_trainer(folder, PerfCallback(**options), logger=logger).fit(module, data)
    finally:
        torch.set_num_threads(before)


def test_the_second_fit_leaves_the_outcome_and_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests may keep the machine busy, and estimates are not checked meanwhile.
    monkeypatch.setattr(processor, "load_average", lambda: 0.0)
    monkeypatch.setattr(CoreUse, "facts", lambda _: {"core_wait": 0.0})
    fit(tmp_path, 1)
    first, second = tmp_path / "logs" / "version_0" / "perf", tmp_path / "logs" / "version_1" / "perf"
    report = PerfReport.load(first / "report.json")
    advice = make_finding("cpu-threads", Problem("", (), "", SavingRange((1e5, 2e5), "")), whole_ns=1e6, rank=0)
    write_report(first, replace(report, findings=(advice,)))  # a rule's verdict would depend on the machine's load
    fit(tmp_path, 2)
    (outcome,) = find_outcomes(tmp_path)
    assert (second / ESTIMATES_NAME).exists()
    assert (outcome.rule, outcome.method, outcome.gain_low_ms) == ("cpu-threads", "second fit", None)
    assert (outcome.setting, outcome.step_ms) == ("device.threads 1 → 2", 1.0)
    assert "Estimate checked: `cpu-threads`" in " ".join(analyze(second).notes), "also when it is read again"
    fit(tmp_path, 2)
    assert len({one.measurement for one in find_outcomes(tmp_path)}) == 2, "a third fit also followed the first one"


def test_a_fault_is_one_warning_and_the_report_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import lightning_perf.estimates.followed as followed

    monkeypatch.setattr(followed, "find_previous", failing(RuntimeError("a fault")))
    with pytest.warns(Warning, match="estimates of earlier fits are not checked"):
        fit(tmp_path, 1)
    assert (tmp_path / "logs" / "version_0" / "perf" / "report.json").exists()
