"""The run records that real Trainers leave: complete, equal for equal runs, and telling what differs."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfCallback
from lightning_perf.callbacks.run_record import fit_record
from lightning_perf.compare.records.fairness import check_fairness
from lightning_perf.compare.records.metrics import Quality, run_values
from lightning_perf.compare.records.record import RunRecord, find_records
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.run_files.run_record import FOLDER_VARIABLE, PLACE_VARIABLE, Outcome, RunRecorder
from tests.callbacks.training import PACKAGES, Points, Stream, failing, loader, make_module, make_trainer, samples
from tests.support.processes import fork_ranks


@pytest.fixture(autouse=True)
def no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.delenv(PLACE_VARIABLE, raising=False)


def quiet(**options: Any) -> PerfCallback:
    return PerfCallback(**{"active": 1, "report": "none", **options})


def points(*, batch_size: int = 2, change_row: int | None = None) -> DataLoader:
    x = torch.linspace(0, 1, 48).reshape(12, 4)
    if change_row is not None:
        x[change_row, 0] += 0.5
    return DataLoader(TensorDataset(x, torch.arange(12) % 2), batch_size)


def validate(self: Any, batch: Any, batch_idx: int) -> None:
    self.log("val_acc", 0.25 * (self.current_epoch + 1))


def log_at_epoch_end(self: Any) -> None:
    self.log("train_acc", 0.5)


def train(
    folder: Path,
    data: Any = None,
    *,
    name: str = PACKAGES[0],
    seed: int = 1,
    callback: PerfCallback | None = None,
    module: dict[str, Any] | None = None,
    **options: Any,
) -> RunRecord:
    """Train, and read the only record below the folder."""
    overrides = {"validation_step": validate, "on_train_epoch_end": log_at_epoch_end, **(module or {})}
    net = make_module(name, **overrides)
    torch.manual_seed(seed)
    trainer = make_trainer(folder, callback or quiet(), name, **{"max_epochs": 2, **options})
    trainer.fit(net, data or points(), loader(1))
    return only(folder)


def only(folder: Path) -> RunRecord:
    (record,) = find_records(folder)
    return record


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    torch.backends.cudnn.benchmark = False
    return train(tmp_path_factory.mktemp("baseline"), callback=quiet(tf32="off"))


def rows(a: RunRecord, b: RunRecord) -> set[str]:
    return {difference.fact for difference in check_fairness([a.facts], [b.facts]).differences}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_fit_leaves_a_record_that_can_be_compared(tmp_path: Path, name: str) -> None:
    a, b = (train(tmp_path / arm, name=name) for arm in "ab")
    assert a.path == tmp_path / "a" / "perf" / "run.jsonl"
    assert (a.outcome, a.error, a.place, a.problems) == (Outcome.FINISHED, None, None, ())
    assert [(e.epoch, e.steps, e.metrics["val_acc"]) for e in a.epochs] == [(0, 6, 0.25), (1, 12, 0.5)]
    assert [e.metrics["train_acc"] for e in a.epochs] == [0.5, 0.5], "logged at the end of the epoch"
    assert a.train_time_s is not None
    assert 0 < a.epochs[0].train_time_s < a.epochs[1].train_time_s <= a.train_time_s
    step_s = sum(row["step_ns"] for row in samples(tmp_path / "a")) / 1e9
    assert a.train_time_s >= step_s
    assert a.steps is not None
    assert a.peak_host_bytes is not None
    assert a.peak_device_bytes is None
    assert rows(a, b) == set()
    assert run_values(a, Quality("val_acc"), None)["accuracy"] == 0.5
    (candidate,) = compare_arms({"a": [a], "b": [b]}).candidates
    assert candidate.arm == "b"


@pytest.mark.parametrize("name", PACKAGES)
def test_the_record_has_the_directions_that_torchmetrics_knows(tmp_path: Path, name: str) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    error, score = torchmetrics.MeanAbsoluteError(), torchmetrics.classification.BinaryF1Score()

    def validation(self: Any, batch: Any, batch_idx: int) -> None:
        self.error, self.score = error, score
        error.update(torch.ones(2), torch.zeros(2))
        score.update(torch.ones(2), torch.ones(2))
        self.log("val_quality", error)
        self.log("val/other", score, on_step=True, on_epoch=True)
        self.log("val_plain", 0.5)

    record = train(tmp_path, name=name, module={"validation_step": validation}, max_epochs=1)
    (epoch,) = record.epochs
    assert epoch.higher_is_better["val_quality"] is False
    assert epoch.higher_is_better["val/other_epoch"] is True
    assert set(epoch.higher_is_better) <= {"val_quality", "val/other", "val/other_epoch", "val/other_step"}


def test_batches_in_a_list_leave_no_addresses_in_the_record(tmp_path: Path) -> None:
    a, b = (
        train(tmp_path / arm, [torch.ones(3, 2, 4), torch.zeros(3, 2, dtype=torch.long)], max_epochs=1) for arm in "ab"
    )
    assert not [fact for fact in a.facts.values() if " at 0x" in str(fact)]
    assert rows(a, b) == set()


def test_the_facts_are_those_of_the_training(tmp_path: Path) -> None:
    record = train(tmp_path, points(batch_size=3), accumulate_grad_batches=2, seed=11, gradient_clip_val=0.5)
    expected = {
        "train.seed": 11,
        "train.precision": "32-true",
        "train.batch_size": 3,
        "train.accumulate": 2,
        "train.max_epochs": 2,
        "train.world_size": 1,
        "train.first_step": 0,
        "train.gradient_clip_val": 0.5,
        "model.class": "Net",
        "model.parameters": 4 * 8 + 8 + 8 * 2 + 2,
        "data.class": "TensorDataset",
        "data.length": 12,
        "data.val_length": 2,
        "device.type": "cpu",
        "version.torch": torch.__version__.partition("+")[0],
    }
    facts = {**record.facts, "version.torch": str(record.facts["version.torch"]).partition("+")[0]}
    assert {name: facts[name] for name in expected} == expected
    assert "lr=0.1" in str(record.facts["train.optimizer"])
    assert record.facts["data.first_batch"] is not None


def other_weights(self: Any) -> None:
    self.layer[2].bias.data[1] += 1e-3


def compile_layers(self: Any) -> None:
    if not isinstance(self.layer, torch._dynamo.OptimizedModule):
        self.layer = torch.compile(self.layer, backend="eager")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"data": {"batch_size": 3}}, {"train.batch_size", "data.first_batch"}),
        ({"data": {"change_row": 0}}, {"data.manifest", "data.first_batch"}),
        ({"data": {"change_row": 11}}, {"data.manifest"}),
        ({"precision": "bf16-mixed"}, {"train.precision"}),
        ({"callback": {"precision": "bf16-mixed"}}, {"train.precision"}),
        (
            {"callback": {"precision": "bf16-mixed", "keep_fp32": ["layer.2"]}},
            {"train.precision", "train.keep_fp32"},
        ),
        ({"callback": {"tf32": "on"}}, {"flags.tf32_matmul", "flags.tf32_cudnn", "flags.mkldnn_matmul"}),
        ({"seed": 2}, {"train.seed"}),
        ({"max_epochs": 3}, {"train.max_epochs"}),
        ({"accumulate_grad_batches": 2}, {"train.accumulate"}),
        ({"benchmark": True}, {"flags.cudnn_benchmark"}),
        ({"module": {"configure_optimizers": lambda self: torch.optim.SGD(self.parameters(), 0.2, 0.9)}}, None),
        ({"module": {"on_fit_start": other_weights}}, {"model.initial_weights"}),
        ({"module": {"configure_model": compile_layers}}, {"model.compiled"}),
    ],
)
def test_what_differs_is_told_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    baseline: RunRecord,
    change: dict[str, Any],
    expected: set[str] | None,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # the Trainer sets it and leaves it
    change = {**change, "callback": quiet(**{"tf32": "off", **change.get("callback", {})})}
    changed = train(tmp_path, points(**change.pop("data", {})), **change)
    assert rows(baseline, changed) == (expected or {"train.optimizer"})


@pytest.mark.parametrize(
    ("name", "error", "outcome", "text"),
    [
        *((name, ZeroDivisionError("own"), Outcome.FAILED, "ZeroDivisionError: own") for name in PACKAGES),
        (PACKAGES[0], KeyboardInterrupt(), Outcome.STOPPED, "KeyboardInterrupt"),
    ],
)
def test_an_error_marks_the_record(
    tmp_path: Path, name: str, error: BaseException, outcome: Outcome, text: str
) -> None:
    def fails(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.current_epoch == 1:
            raise error
        return self.loss(batch)

    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((ZeroDivisionError, SystemExit)):
            train(tmp_path, name=name, module={"training_step": fails})
    finally:
        signal.signal(signal.SIGINT, handler)
    record = only(tmp_path)
    assert (record.outcome, record.error) == (outcome, text)
    assert [epoch.epoch for epoch in record.epochs] == [0]
    assert record.steps is not None
    assert record.steps.steps + record.steps.warmup_steps == 6


def test_a_killed_run_keeps_what_was_finished_and_counts_as_interrupted(tmp_path: Path) -> None:
    done = fork_ranks(str(Path(__file__).with_name("killed_script.py")), str(tmp_path), ranks=1, variables={})
    assert done.returncode == -signal.SIGKILL, done.stderr
    record = only(tmp_path)
    assert (record.outcome, record.train_time_s) == (Outcome.INTERRUPTED, None)
    assert [epoch.epoch for epoch in record.epochs] == [0]
    assert record.facts["data.first_batch"] is not None


def test_a_resumed_fit_has_a_record_of_its_own(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "a", quiet())
    trainer.fit(make_module(), loader(4))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = make_trainer(tmp_path / "b", quiet(), max_epochs=2)
    again.fit(make_module(), loader(4), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    first, second = only(tmp_path / "a"), only(tmp_path / "b")
    assert [(e.epoch, e.steps) for e in second.epochs] == [(1, 8)]
    assert rows(first, second) == {"model.initial_weights", "train.first_step", "train.max_epochs"}


def test_an_early_end_asked_for_is_a_finished_run(tmp_path: Path) -> None:
    def stop(self: Any) -> None:
        self.trainer.should_stop = True

    record = train(tmp_path, module={"on_train_epoch_end": stop}, max_epochs=5)
    assert (record.outcome, len(record.epochs)) == (Outcome.FINISHED, 1)


def test_data_without_a_length_and_several_loaders(tmp_path: Path) -> None:
    def first(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.loss(batch["a"])

    data = {"a": DataLoader(Stream(8), 2), "b": DataLoader(Points(8), 4)}
    record = train(tmp_path, data, module={"training_step": first}, max_epochs=1)
    names = ("train.batch_size", "data.class", "data.length", "data.manifest")
    assert [record.facts[name] for name in names] == ["2, 4", "Stream, Points", "None, 8", None]


def test_a_step_that_takes_the_iterator_has_no_first_batch(tmp_path: Path) -> None:
    def from_iterator(self: Any, dataloader_iter: Any) -> torch.Tensor:
        return self.loss(next(dataloader_iter)[0])

    record = train(tmp_path, module={"training_step": from_iterator, "on_train_epoch_end": lambda self: None})
    assert record.outcome is Outcome.FINISHED
    assert record.facts["data.first_batch"] is None


@pytest.mark.parametrize(
    ("owner", "method", "left"),
    [
        (fit_record, "training_facts", True),
        (fit_record, "model_facts", True),
        (fit_record, "data_facts", True),
        (fit_record, "batch_facts", True),
        (fit_record, "host_notes", False),
        (RunRecorder, "__init__", False),
        (RunRecorder, "epoch_ends", True),
        (RunRecorder, "ends", True),
    ],
    ids=str,
)
def test_a_fault_is_one_warning_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, left: bool
) -> None:
    monkeypatch.setattr(owner, method, failing(OSError("a fault of ours")))
    trainer = make_trainer(tmp_path, quiet(), max_epochs=2)
    with pytest.warns(RuntimeWarning, match="record.*a fault of ours") as caught:
        trainer.fit(make_module(), points())
    assert len([w for w in caught if "PerfCallback" in str(w.message)]) == 1
    assert trainer.state.finished
    assert (tmp_path / "perf" / "run.jsonl").exists() is left
    assert len(samples(tmp_path)) == 12


def test_a_light_fingerprint_hashes_neither_weights_nor_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("lightning_perf.callbacks.run_record.run_facts._manifest", calls.append)
    record = train(tmp_path, callback=quiet(fingerprint="light"))
    assert calls == []
    assert record.facts["model.initial_weights"] is None
    assert record.facts["data.manifest"] is None
    assert record.facts["model.parameters"]
    assert record.facts["data.length"]
