"""A fit's own output stays the user's: a short report, no folder for a trial run, and the logger's own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_perf import PerfCallback, PrecisionCallback
from tests.callbacks.perf_training import quick
from tests.callbacks.training import PACKAGES, loader, make_module, make_trainer, package, recording_logger


def logging_module(name: str = PACKAGES[0]) -> Any:
    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self: Any, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    return make_module(name, training_step=training_step, validation_step=validation_step)


def table(tmp_path: Path, callback: Any, name: str = PACKAGES[0], module: Any = None, **options: Any) -> list[Any]:
    logger = package(f"{name}.loggers").CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    trainer = make_trainer(tmp_path, callback, name, logger=logger, max_epochs=3, log_every_n_steps=2, **options)
    trainer.fit(module or logging_module(name), loader(8), loader(2))
    assert "log_metrics" not in vars(logger), "the logger did not get its method back"
    header, *rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    return [dict(zip(header.split(","), row.split(","), strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("name", "options"),
    [(PACKAGES[0], {}), (PACKAGES[1], {}), (PACKAGES[0], {"accumulate_grad_batches": 2, "val_check_interval": 3})],
    ids=str,
)
def test_a_table_has_the_same_rows_with_the_callback(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    without = table(tmp_path / "without", None, name, **options)
    rows = table(tmp_path / "with", quick(), name, **options)
    assert len(rows) == len(without)
    for row, plain in zip(rows, without, strict=True):
        assert plain.items() <= row.items(), "every figure of the user is in its own row"
    assert sum(bool(row["perf/step_time_ms"]) for row in rows) >= 3


def test_a_module_that_logs_nothing_has_one_row_of_the_callback(tmp_path: Path) -> None:
    (row,) = table(tmp_path, quick(), module=make_module())
    assert float(row["perf/step_time_ms"]) > 0
    assert float(row["perf/recorded/step_ms"]) > 0


def test_metrics_can_be_switched_off(tmp_path: Path) -> None:
    assert table(tmp_path / "with", quick(log_metrics=False)) == table(tmp_path / "without", None)


def test_no_column_is_always_zero(tmp_path: Path) -> None:
    logger = recording_logger(tmp_path)
    make_trainer(tmp_path, quick(), logger=logger, log_every_n_steps=2).fit(make_module(), loader(12))
    columns: dict[str, list[float]] = {}
    for _, row in logger.rows:
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    assert any(key.startswith("perf/recorded/") for key in columns)
    assert [key for key, values in columns.items() if key.startswith("perf/") and not any(values)] == []


@pytest.mark.usefixtures("fp16_on_cpu")
@pytest.mark.parametrize("beside", [False, True])
def test_the_loss_scale_is_in_the_rows_of_the_trainer(tmp_path: Path, beside: bool) -> None:
    callback = PrecisionCallback("16-mixed")
    without = table(tmp_path / "without", None)
    rows = table(tmp_path / "with", callback, callbacks=[quick()] if beside else [])
    assert len(rows) == len(without)
    assert [row["perf/loss_scale"] for row in rows if row["perf/loss_scale"]]
    assert "perf/skipped_steps" not in rows[0], "no step was skipped"
    assert "perf/loss_scale" not in table(tmp_path / "off", PrecisionCallback("16-mixed", log_metrics=False))[0]


def test_a_failing_logger_costs_its_metrics_only(tmp_path: Path) -> None:
    base: Any = type(recording_logger(tmp_path))

    class Away(base):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            raise ConnectionError("the logger's server is away")

    trainer = make_trainer(tmp_path, quick(), logger=Away(), log_every_n_steps=2)
    with pytest.warns(RuntimeWarning, match="no longer logged.*server is away") as caught:
        trainer.fit(make_module(), loader(8))
    assert trainer.global_step == 8
    assert len([item for item in caught if issubclass(item.category, RuntimeWarning)]) == 1
    assert (tmp_path / "perf" / "report.json").exists()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_fast_dev_run_leaves_one_line_and_no_folder(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tmp_path, PerfCallback(), name, fast_dev_run=True)
    capsys.readouterr()
    trainer.fit(make_module(name), loader(4), loader(1))
    assert capsys.readouterr().out == "PerfCallback: nothing is measured under fast_dev_run.\n"
    assert list(tmp_path.iterdir()) == []
    assert trainer.global_step == 1
    make_trainer(tmp_path, PerfCallback(report="none"), name, fast_dev_run=True).fit(make_module(name), loader(4))
    make_trainer(tmp_path, PrecisionCallback("bf16-mixed"), name, fast_dev_run=True).fit(make_module(name), loader(4))
    assert "PerfCallback" not in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_fast_dev_run_switches_the_precision(tmp_path: Path) -> None:
    callback = PerfCallback(precision="bf16-mixed", report="none")
    seen: list[bool] = []

    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        loss: torch.Tensor = self.loss(batch)
        return loss

    make_trainer(tmp_path, callback, fast_dev_run=True).fit(make_module(training_step=training_step), loader(4))
    assert seen == [True]


def test_the_report_is_short_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def slow(self: Any, batch: Any, batch_idx: int) -> Any:
        import time

        time.sleep(0.02)
        return batch

    module = make_module(on_after_batch_transfer=slow)
    make_trainer(tmp_path, PerfCallback(skip_first=2, warmup=1, active=3)).fit(module, loader(20))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Where ")
    assert any(line.startswith("Next ") for line in lines)
    assert lines[-1] == f"Full report: lightning-perf analyze {tmp_path / 'perf'}"
    assert 3 <= len(lines) <= 18
