"""`PerfLoop`: the same steps, phases and files as `PerfCallback` leaves, and the same results as without it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

import lightning_perf
from lightning_perf import PerfCallback, PerfLoop, analyze
from lightning_perf.compare.records.record import find_records
from lightning_perf.lazy_imports import install_command
from lightning_perf.loop.hooks import FetchHooks
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.run_record import Outcome
from tests.callbacks.training import QUIET, failing, phases_by_step, samples, step_marks, trace_files
from tests.support.absent_packages import without

QUICK: dict[str, Any] = {"skip_first": 1, "warmup": 0, "active": 2, "report": "none"}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_fault(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which `PerfLoop` reports a fault that the test does not expect."""
    yield
    if "warning" not in request.node.name:
        assert not [record.message for record in caplog.get_records("call") if "PerfLoop: " in record.message]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))


def loader(batches: int = 8, batch_size: int = 2) -> DataLoader[Any]:
    size = batches * batch_size
    data = TensorDataset(torch.arange(4.0 * size).reshape(size, 4) / size, torch.arange(size) % 2)
    return DataLoader(data, batch_size)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def stepper(model: torch.nn.Module | None = None, optimizer: Any = None) -> Callable[[Any], None]:
    """Forward, backward and optimizer on a batch."""
    model = model or network()
    optimizer = optimizer or sgd(model)

    def train(batch: Any) -> None:
        loss_of(model, batch).backward()
        optimizer.step()

    return train


def plain(
    perf: PerfLoop | None, batches: int = 8, *, accumulate: int = 1, epochs: int = 1, told: int | None = None
) -> list[torch.Tensor]:
    model = network()
    optimizer = sgd(model)
    data = loader(batches)
    for _ in range(epochs):
        for index, batch in enumerate(perf.steps(data, accumulate=told) if perf is not None else data):
            (loss_of(model, batch) / accumulate).backward()
            if (index + 1) % accumulate == 0 or index + 1 == batches:
                optimizer.step()
                optimizer.zero_grad()
    return weights(model)


def with_fabric(perf: PerfLoop | None) -> list[torch.Tensor]:
    fabric = Fabric(accelerator="cpu", devices=1)
    bare = network()
    model, optimizer = fabric.setup(bare, sgd(bare))
    data = fabric.setup_dataloaders(loader())
    for batch in perf.steps(data) if perf is not None else data:
        fabric.backward(loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    return weights(bare)


class Net(lightning.pytorch.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return loss_of(self.network, batch)

    def configure_optimizers(self) -> Any:
        return sgd(self.network)


def with_trainer(folder: Path) -> list[torch.Tensor]:
    net = Net()
    options: Any = {**QUIET, "default_root_dir": folder, "max_epochs": 1}
    trainer = lightning.pytorch.Trainer(**options, callbacks=[PerfCallback(**QUICK)])
    trainer.fit(net, loader())
    return weights(net.network)


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(left, right) for left, right in zip(a, b, strict=True))


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:.*number of training batches:UserWarning")
def test_trainer_fabric_and_plain_loop_leave_the_same(tmp_path: Path) -> None:
    results = {"trainer": with_trainer(tmp_path / "trainer")}
    folders = {"trainer": tmp_path / "trainer" / "perf"}
    loops: dict[str, Callable[[PerfLoop | None], list[torch.Tensor]]] = {"fabric": with_fabric, "plain": plain}
    for name, train in loops.items():
        folders[name] = tmp_path / name
        with PerfLoop(dirpath=folders[name], **QUICK) as perf:
            results[name] = train(perf)
        assert equal(results[name], train(None)), "the same results with and without"
    assert all(equal(results["trainer"], other) for other in results.values())
    for name, folder in folders.items():
        rows = samples(folder)
        assert [(row["step"], row["samples"], row["profiled"]) for row in rows] == [
            (step, 2, step in (1, 2)) for step in range(8)
        ], name
        (file,) = trace_files(folder)
        assert [mark.name for mark in step_marks(file)] == ["ProfilerStep#1", "ProfilerStep#2"]
        phases = phases_by_step(file)
        expected = ["fetch", "forward", "backward", "optimizer"]
        own = [[phase for phase, after in pairwise([*step, ""]) if phase != after] for step in phases]
        if name == "trainer":  # it moves batches itself, and its optimizer step holds forward and backward
            assert [set(step) for step in own] == [{*expected, "transfer"}] * 2
        else:
            assert own == [expected] * 2
        report = PerfReport.load(folder / "report.json")
        (rank,) = report.ranks
        assert len(rank.breakdown.steps) == 2
        leaves = [row for row in rank.breakdown.categories if row.parent is None]
        assert sum(row.mean_ns or 0 for row in leaves) == pytest.approx(rank.breakdown.wall.mean_ns)
        assert rank.phases is not None
        assert sum(row.mean_ns for row in rank.phases.phases) == pytest.approx(rank.breakdown.wall.mean_ns)
        assert {row.name for row in rank.phases.phases if row.mean_ns} >= set(expected)
        (record,) = find_records(folder)
        assert record.outcome is Outcome.FINISHED
        assert [(epoch.epoch, epoch.steps) for epoch in record.epochs] == [(0, 8)]
    hidden = {name: PerfReport.load(folder / "report.json").ranks[0] for name, folder in folders.items()}
    assert len({tuple(row.name for row in rank.breakdown.categories) for rank in hidden.values()}) == 1


def test_the_functions_of_torch_are_restored(tmp_path: Path) -> None:
    before = (torch.autograd.backward, torch.amp.GradScaler.step)
    with PerfLoop(dirpath=tmp_path, **QUICK) as perf:
        for _ in perf.steps(loader()):
            assert torch.autograd.backward is not before[0]
    assert (torch.autograd.backward, torch.amp.GradScaler.step) == before


@pytest.mark.parametrize(("batches", "steps"), [(12, 3), (10, 3), (3, 1)])
@pytest.mark.parametrize("given", [None, 4])
def test_accumulation_is_told_by_the_optimizer_or_by_you(
    tmp_path: Path, batches: int, steps: int, given: int | None
) -> None:
    with PerfLoop(dirpath=tmp_path, **QUICK) as perf:
        plain(perf, batches, accumulate=4, epochs=2, told=given)
    rows = samples(tmp_path)
    assert [row["step"] for row in rows] == list(range(2 * steps))
    assert sum(row["samples"] for row in rows) == 2 * 2 * batches


def test_an_optimizer_that_torch_does_not_know(tmp_path: Path) -> None:
    model = network()
    counts = {}
    for name in ("accumulate", "step", "neither"):
        with PerfLoop(dirpath=tmp_path / name, **QUICK) as perf:
            data = loader(80)
            for index, batch in enumerate(perf.steps(data, accumulate=4 if name == "accumulate" else None)):
                loss_of(model, batch).backward()
                if index % 4 == 3:
                    with torch.no_grad():
                        for parameter in model.parameters():
                            parameter.mul_(0.99)
                    if name == "step":
                        perf.step()
        counts[name] = len(samples(tmp_path / name))
    assert counts == {"accumulate": 20, "step": 20, "neither": 80 - 64}


@pytest.mark.parametrize("optimizers", [1, 2])
def test_steps_that_a_gradient_scaler_skips_are_steps_and_several_optimizers_make_one(
    tmp_path: Path, optimizers: int
) -> None:
    pairs = [(model, sgd(model)) for model in (network() for _ in range(optimizers))]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with PerfLoop(dirpath=tmp_path, **QUICK) as perf:
        for index, batch in enumerate(perf.steps(loader(8))):
            for model, optimizer in pairs:
                optimizer.zero_grad()
                loss = loss_of(model, batch) * (float("inf") if index in (1, 5) else 1.0)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
            scaler.update()
    assert [(row["step"], row["samples"]) for row in samples(tmp_path)] == [(step, 2) for step in range(8)]
    (file,) = trace_files(tmp_path)
    assert phases_by_step(file) == [["fetch", "forward", *["backward", "optimizer"] * optimizers]] * 2


def test_lbfgs_and_checkpointing_nest(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    with PerfLoop(dirpath=tmp_path, **QUICK) as perf:
        for batch in perf.steps(loader(5)):

            def closure(batch: Any = batch) -> torch.Tensor:
                optimizer.zero_grad()
                inner = torch.utils.checkpoint.checkpoint(model, batch[0].requires_grad_(), use_reentrant=True)
                loss = torch.nn.functional.cross_entropy(inner, batch[1])
                loss.backward()
                return loss

            optimizer.step(closure)
    assert len(samples(tmp_path)) == 5
    (file,) = trace_files(tmp_path)
    for step in phases_by_step(file):
        assert step[:4] == ["fetch", "forward", "optimizer", "backward"]
        assert set(step[4:]) == {"optimizer", "backward"}


def test_a_loop_that_is_no_for(tmp_path: Path) -> None:
    train, data = stepper(), next(iter(loader()))
    with PerfLoop(dirpath=tmp_path, **QUICK) as perf:
        remaining = 6
        while remaining:
            train(data)
            remaining -= 1
            perf.step()
    assert [row["step"] for row in samples(tmp_path)] == list(range(6))
    (file,) = trace_files(tmp_path)
    assert [mark.name for mark in step_marks(file)] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert phases_by_step(file) == [["backward", "optimizer"]] * 2


def test_an_iterator_in_a_while_loop_and_a_break(tmp_path: Path) -> None:
    optimizer = sgd(network())
    with PerfLoop(dirpath=tmp_path, **QUICK) as perf:
        batches = perf.steps(loader(8))
        for _ in range(4):
            next(batches)
            optimizer.step()
        batches.close()
        for index, _ in enumerate(perf.steps(loader(8))):
            if index == 1:
                break
    assert len(samples(tmp_path)) == 4


def test_epochs_and_their_metrics_are_recorded(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    train, data = stepper(model, optimizer), loader(8)
    with PerfLoop(model, optimizer, dirpath=tmp_path, **QUICK) as perf:
        for epoch in range(3):
            for batch in perf.steps(data):
                train(batch)
            perf.log({"val_acc": torch.tensor(epoch / 4), "note": "a text"})
    (record,) = find_records(tmp_path)
    assert [(e.epoch, e.steps, dict(e.metrics)) for e in record.epochs] == [
        (0, 8, {"val_acc": 0.0}), (1, 16, {"val_acc": 0.25}), (2, 24, {"val_acc": 0.5}),
    ]  # fmt: skip
    facts = record.facts
    assert facts["train.strategy"] == "PerfLoop"
    assert str(facts["train.optimizer"]).startswith("SGD(")
    assert (facts["train.batch_size"], facts["data.length"], facts["model.parameters"]) == (2, 16, 58)
    assert facts["model.initial_weights"]
    assert facts["data.manifest"]
    assert facts["data.first_batch"]
    assert [row["step"] for row in samples(tmp_path)] == list(range(24))


def test_the_same_runs_can_be_compared(tmp_path: Path) -> None:
    for arm in "ab":
        for number in range(2):
            with PerfLoop(dirpath=tmp_path / arm / str(number), **QUICK) as perf:
                plain(perf, 20)
    comparison = lightning_perf.compare_runs({"a": tmp_path / "a", "b": tmp_path / "b"})
    assert isinstance(comparison, lightning_perf.Comparison)
    assert len(comparison.runs) == 4
    assert [arm.name for arm in comparison.arms] == ["a", "b"]


def test_work_in_a_pause_belongs_to_no_step(tmp_path: Path) -> None:
    train = stepper()
    with PerfLoop(dirpath=tmp_path, **{**QUICK, "active": 4}) as perf:
        for index, batch in enumerate(perf.steps(loader(8))):
            train(batch)
            if index == 2:
                with perf.pause():
                    torch.arange(7).cumsum(0)  # an operator that nothing else here runs
    assert len(samples(tmp_path)) == 8
    files = trace_files(tmp_path)
    assert [[mark.name for mark in step_marks(file)] for file in files] == [
        ["ProfilerStep#1", "ProfilerStep#2"], ["ProfilerStep#3", "ProfilerStep#4"],
    ]  # fmt: skip
    assert not any("cumsum" in file.read_bytes().decode("latin1") for file in files)
    report = analyze(tmp_path)
    assert report.ranks[0].operators is not None
    assert "aten::cumsum" not in {row.name for row in report.ranks[0].operators.rows}


def test_an_error_of_the_training_passes_and_leaves_a_report(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), PerfLoop(dirpath=tmp_path, **QUICK) as perf:  # noqa: PT012
        for index, _ in enumerate(perf.steps(loader(8))):
            if index == 5:
                raise ZeroDivisionError
            sgd(network()).step()
    assert len(samples(tmp_path)) == 5
    (record,) = find_records(tmp_path)
    assert record.outcome is Outcome.FAILED
    assert (tmp_path / "report.json").exists()


def test_a_fault_of_the_profiler_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = failing(OSError("out of luck"))
    monkeypatch.setattr("lightning_perf.callbacks.recording.profiler.new_recorder", recorder)
    with (
        pytest.warns(RuntimeWarning, match="PerfLoop: .* training continues") as warned,
        PerfLoop(dirpath=tmp_path, **QUICK) as perf,
    ):
        results = plain(perf)
    assert len(warned) == 1
    assert equal(results, plain(None))


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.warns(RuntimeWarning, match="PerfLoop: traces and step times are not saved"),
        PerfLoop(dirpath=tmp_path / "file" / "perf", **QUICK) as perf,
    ):
        results = plain(perf)
    assert equal(results, plain(None))
    assert perf.folder is None


def test_a_second_run_gets_another_folder_and_the_report_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    perf = PerfLoop(dirpath=tmp_path / "perf")
    for name in ("perf", "perf_1"):
        with perf:
            plain(perf)
        assert perf.folder == tmp_path / name
        assert f"lightning-perf analyze {tmp_path / name}\n" in capsys.readouterr().out
    assert len(samples(tmp_path / "perf_1")) == 8
    # A short loop shortens the schedule.
    assert [len(step_marks(file)) for file in trace_files(tmp_path / "perf_1")] == [5]


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not int"):
        PerfLoop(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="total_steps=0 is too small: give 1 or more"):
        PerfLoop(total_steps=0)
    perf = PerfLoop(dirpath=tmp_path, **QUICK)
    use: Callable[[], object]
    for use in (lambda: perf.steps([]), perf.step, lambda: perf.log({}), lambda: perf.pause().__enter__()):
        with pytest.raises(RuntimeError, match=r"use 'with PerfLoop\(…\) as perf:'"):
            use()
    with perf:
        with pytest.raises(RuntimeError, match="is open already"):
            perf.__enter__()
        with pytest.raises(ValueError, match="accumulate=0 is too small"):
            perf.steps([], accumulate=0)
        with pytest.raises(TypeError, match="accumulate must be a whole number"):
            perf.steps([], accumulate=1.5)  # type: ignore[arg-type]


def test_two_loaders_at_once_are_one_warning(tmp_path: Path) -> None:
    optimizer = sgd(network())

    def train(perf: PerfLoop) -> None:
        for _, _ in zip(perf.steps(loader(8)), perf.steps(loader(8)), strict=True):
            optimizer.step()

    with (
        pytest.warns(RuntimeWarning, match="only one loader at a time is measured"),
        PerfLoop(dirpath=tmp_path, **QUICK) as perf,
    ):
        train(perf)
    assert len(samples(tmp_path)) == 8


def test_works_without_lightning(tmp_path: Path) -> None:
    code = f"""
import torch
from lightning_perf import PerfLoop
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.DataLoader(torch.rand(40, 4), 2)
with PerfLoop(model, optimizer, dirpath={str(tmp_path)!r}) as perf:
    for batch in perf.steps(data):
        model(batch).sum().backward()
        optimizer.step()
"""
    absent = without({"lightning", "pytorch_lightning", "lightning_fabric", "tensorboard", "scipy"}, code)
    done = subprocess.run([sys.executable, "-c", absent], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "PerfLoop:" not in done.stderr
    assert len(samples(tmp_path)) == 20
    assert "Full report: " in done.stdout


@pytest.mark.parametrize(
    ("package", "extra", "code"),
    [
        ("torch", "train", "from lightning_perf import PerfLoop"),
        ("transformers", "transformers", "from lightning_perf import PerfTrainerCallback; PerfTrainerCallback()"),
    ],
)
def test_without_a_package_the_error_says_what_to_install(package: str, extra: str, code: str) -> None:
    absent = without({package}, code)
    done = subprocess.run([sys.executable, "-c", absent], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode
    assert install_command(extra) in done.stderr


def test_fetches_are_told_apart_by_their_data_set() -> None:
    own, other, heard = loader(2), loader(1), list[object]()
    hooks = FetchHooks(
        own.dataset, lambda: heard.append("start"), lambda batch: heard.append(batch), lambda: heard.append("other")
    )
    batches = list(own)
    list(other)
    hooks.remove()
    list(own)
    assert heard == ["start", batches[0], "start", batches[1], "start", None, "other", "other"]


def test_the_note_for_the_run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes.jsonl"
    notes.touch()
    monkeypatch.setenv("LIGHTNING_PERF_RUN", json.dumps({"notes": str(notes)}))
    with PerfLoop(dirpath=tmp_path / "perf", **QUICK):
        pass
    assert json.loads(notes.read_text()) == {"type": "own measurement", "name": "PerfLoop"}
