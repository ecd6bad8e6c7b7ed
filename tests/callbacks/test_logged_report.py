"""`PerfCallback(log_report=True)` sends the report to the loggers of the Trainer.

Weights & Biases and MLflow have stand-ins with the names and the calls that their documentation gives. The others are
real.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_perf.report.document import PerfReport
from tests.callbacks.perf_training import quick
from tests.callbacks.training import loader, make_module, make_trainer, recording_logger

Curves: Any = type(recording_logger(Path()))


class Recorder(Curves):
    """A logger that keeps what it gets. Its class name decides how the report is sent."""

    save_dir = None

    def __init__(self) -> None:
        super().__init__()
        self.artifacts: list[tuple[Any, ...]] = []
        self.run_id = "run-1"
        self.experiment = SimpleNamespace(id="abc", log_artifact=lambda *artifact: self.artifacts.append(artifact))

    @property
    def metrics(self) -> dict[str, float]:
        return {name: value for _, row in self.rows for name, value in row.items()}


class WandbLogger(Recorder):
    pass


class MLFlowLogger(Recorder):
    pass


class Artifact:
    """``wandb.Artifact``."""

    def __init__(self, name: str, type: str) -> None:
        self.name, self.type = name, type
        self.files: dict[str, int] = {}

    def add_file(self, path: str, name: str) -> None:
        self.files[name] = Path(path).stat().st_size


def test_every_logger_gets_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Artifact=Artifact))
    board, table = TensorBoardLogger(tmp_path, "board"), CSVLogger(tmp_path, "table")
    wandb, mlflow, other = WandbLogger(), MLFlowLogger(), Recorder()
    loggers = [board, wandb, mlflow, other, table]
    make_trainer(tmp_path, quick(log_report=True, dirpath=tmp_path / "perf"), logger=loggers).fit(
        make_module(), loader(8)
    )
    report = PerfReport.load(tmp_path / "perf" / "report.json")
    page = tmp_path / "perf" / "report.html"
    assert report.step_times is not None
    for logger in (wandb, mlflow, other):
        sent = {name: value for name, value in logger.metrics.items() if name.startswith("perf/report/")}
        assert sent["perf/report/step_time_ms"] == report.step_times.mean_ns / 1e6
        assert sent["perf/report/step_time_p90_ms"] == report.step_times.p90_ns / 1e6
        assert sent["perf/report/samples_per_s"] == report.step_times.samples_per_second
        assert sent["perf/report/data_wait_share"] == report.step_times.data_wait_share
        assert sent["perf/report/findings"] == len(report.findings)
        assert len(sent) == 5  # no device, so no busy share
    ((artifact,),) = wandb.artifacts
    assert (artifact.name, artifact.type) == ("perf-report-abc", "perf-report")
    assert artifact.files == {"report.html": page.stat().st_size}
    assert mlflow.artifacts == [("run-1", str(page), "perf")]
    assert other.artifacts == []

    events = EventAccumulator(board.log_dir).Reload()
    assert "perf/report/step_time_ms" in events.Tags()["scalars"]
    (text,) = events.Tensors("perf/report/text_summary")
    shown = text.tensor_proto.string_val[0].decode()
    assert shown.startswith("**Where** ")
    assert "| mean step time |" in shown
    with (Path(table.log_dir) / "metrics.csv").open() as file:
        assert not any(name.startswith("perf/report/") for row in csv.DictReader(file) for name in row)


def test_a_logger_that_fails_is_one_warning(tmp_path: Path) -> None:
    class Broken(Recorder):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            if any(name.startswith("perf/report/") for name in metrics):
                raise OSError("no network")

    healthy = Recorder()
    trainer = make_trainer(tmp_path, quick(log_report=True), logger=[Broken(), Broken(), healthy])
    with pytest.warns(RuntimeWarning, match="not sent to Broken.*no network") as caught:
        trainer.fit(make_module(), loader(4))
    assert len([warning for warning in caught if "not sent" in str(warning.message)]) == 1
    assert "perf/report/step_time_ms" in healthy.metrics


def test_without_the_option_nothing_is_sent(tmp_path: Path) -> None:
    wandb = WandbLogger()
    make_trainer(tmp_path, quick(), logger=[wandb]).fit(make_module(), loader(4))
    assert wandb.artifacts == []
    assert not any(name.startswith("perf/report/") for name in wandb.metrics)
    assert not list(tmp_path.rglob("report.html"))
