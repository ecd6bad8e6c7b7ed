"""`PerfTrainerCallback` on a tiny language model with random weights: no downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from lightning_perf.compare.records.record import find_records
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.run_record import Outcome
from tests.callbacks.training import phases_by_step, samples, step_marks, trace_files
from tests.support.known import known

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers itself

PARAMETERS = 50 * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16
"""Of the tiny GPT-2, without its table of positions: the tied table, and its layer with biases and norms."""

QUICK: dict[str, Any] = {"skip_first": 1, "warmup": 0, "active": 2, "report": "none"}


class Tokens(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 16) % 50
        return {"input_ids": tokens, "labels": tokens}


def train(folder: Path, callback: Any = None, **options: Any) -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, num_train_epochs=1, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_steps=4, seed=1, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config), arguments, train_dataset=Tokens(), eval_dataset=Tokens(),
        callbacks=[callback] if callback is not None else [],
    )  # fmt: skip
    trainer.train()
    return trainer, [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 12), (3, 4), (5, 3)])
def test_steps_phases_and_results(tmp_path: Path, accumulate: int, steps: int) -> None:
    from lightning_perf import PerfTrainerCallback

    options = {"gradient_accumulation_steps": accumulate, "eval_strategy": "epoch"}
    trainer, weights = train(tmp_path, PerfTrainerCallback(**QUICK), **options)
    assert trainer.state.global_step == steps
    _, expected = train(tmp_path / "without", **options)
    assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
    rows = samples(tmp_path)
    assert [row["step"] for row in rows] == list(range(steps))
    assert sum(row["samples"] for row in rows) == 24
    assert [row["samples"] for row in rows][:-1] == [2 * accumulate] * (steps - 1)
    assert [row["tokens"] for row in rows] == [16 * row["samples"] for row in rows]
    marks = [mark.name for file in trace_files(tmp_path) for mark in step_marks(file) if mark.finished]
    assert marks == ["ProfilerStep#1", "ProfilerStep#2"]
    found = [phase for file in trace_files(tmp_path) for step in phases_by_step(file) for phase in step]
    assert set(found) == {"fetch", "forward", "backward", "optimizer"}
    report = PerfReport.load(tmp_path / "perf" / "report.json")
    breakdown = report.ranks[0].breakdown
    assert sum(row.mean_ns or 0 for row in breakdown.categories if row.parent is None) == pytest.approx(
        breakdown.wall.mean_ns
    )
    model, metadata = report.ranks[0].language_model, report.ranks[0].metadata
    assert model is not None
    recorded = [row["samples"] for row in rows[1:3]]
    assert (model.tokens_per_step, model.parameters) == (16 * sum(recorded) / 2, PARAMETERS)
    assert (known(metadata.batch).tensors, known(metadata.batch).tensor_bytes) == (2, 2 * 2 * 16 * 8)
    assert (known(metadata.loader).kind, known(metadata.loader).workers) == ("map", 0)
    (record,) = find_records(tmp_path / "perf")
    assert [record.facts[f"train.{name}"] for name in ("batch_size", "accumulate")] == [2, accumulate]
    assert record.outcome is Outcome.FINISHED
    assert [(epoch.epoch, epoch.steps) for epoch in record.epochs] == [(0, steps)]
    assert "eval_loss" in record.epochs[0].metrics
    assert str(record.facts["model.class"]) == "GPT2LMHeadModel"


def test_bad_options_are_errors_at_once() -> None:
    from lightning_perf import PerfTrainerCallback

    with pytest.raises(ValueError, match="report='long' is unknown"):
        PerfTrainerCallback(report="long")  # type: ignore[arg-type]
