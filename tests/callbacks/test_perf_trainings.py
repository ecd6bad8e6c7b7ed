"""`PerfCallback` on trainings of each kind: what a step is there, and what its phases are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import lightning_perf.machine.processor as processor_module
from lightning_perf.callbacks.steps.core_use import CoreUse
from lightning_perf.machine.page_faults import allocator_name
from lightning_perf.report.build import build_report
from tests.callbacks.perf_training import assert_nested, fit, quick
from tests.callbacks.training import (
    PACKAGES,
    Stream,
    events,
    loader,
    make_module,
    manual_step,
    package,
    phases_by_step,
    samples,
    step_numbers,
    trace_files,
)


def test_accumulation_makes_one_step_of_its_micro_batches(tmp_path: Path) -> None:
    fit(tmp_path, 8, accumulate_grad_batches=3)
    assert step_numbers(tmp_path) == [[1, 2]]
    (file,) = trace_files(tmp_path)
    first = ["fetch", "transfer", "forward", "optimizer", "backward"]  # zeroing, then the gradients of one micro-batch
    middle = ["fetch", "transfer", "forward", "backward"]
    last = [*middle, "optimizer"]
    assert phases_by_step(file) == [first + middle + last, first + last], "the epoch's last group is short"
    assert [s["samples"] for s in samples(tmp_path)] == [6, 6, 4]


MANUAL = ["fetch", "transfer", "forward", "backward", "forward", "optimizer", "forward"]


def two_optimizers(self: Any) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(self.layer[0].parameters(), 0.1), torch.optim.Adam(self.layer[2].parameters(), 0.1)]


@pytest.mark.parametrize(
    ("name", "overrides", "phases"),
    [
        *((name, {}, MANUAL) for name in PACKAGES),
        (PACKAGES[0], {"configure_optimizers": two_optimizers}, MANUAL + MANUAL[3:]),
    ],
)
def test_manual_optimization(tmp_path: Path, name: str, overrides: dict[str, Any], phases: list[str]) -> None:
    module = make_module(name, training_step=manual_step, automatic_optimization=False, **overrides)
    fit(tmp_path, name=name, module=module)
    (file,) = trace_files(tmp_path)
    assert step_numbers(tmp_path) == [[1, 2]]
    assert phases_by_step(file) == [phases] * 2
    assert len(samples(tmp_path)) == 8
    assert_nested(file)


def test_manual_accumulation(tmp_path: Path) -> None:
    def accumulate(self: Any, batch: Any, batch_idx: int) -> None:
        self.manual_backward(self.loss(batch))
        if batch_idx % 2 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()

    fit(tmp_path, 9, module=make_module(training_step=accumulate, automatic_optimization=False))
    (file,) = trace_files(tmp_path)
    assert [phases.count("fetch") for phases in phases_by_step(file)] == [2, 2]
    assert [s["samples"] for s in samples(tmp_path)] == [2, 4, 4, 4, 4]


def test_an_optimizer_that_evaluates_its_closure_again(tmp_path: Path) -> None:
    module = make_module(configure_optimizers=lambda self: torch.optim.LBFGS(self.parameters(), max_iter=3))
    fit(tmp_path, 4, module=module)
    (file,) = trace_files(tmp_path)
    for phases in phases_by_step(file):
        assert phases.count("forward") == phases.count("backward") > 1
        assert phases[-1] == "optimizer"


def test_iterable_data_without_a_length(tmp_path: Path) -> None:
    fit(tmp_path, DataLoader(Stream(14), 2), max_epochs=2, callback=quick(skip_first=5, active=4))
    assert step_numbers(tmp_path) == [[5, 6], [7, 8]]
    assert len(samples(tmp_path)) == 14
    _, second = trace_files(tmp_path)
    # One batch is fetched ahead, the last two fetches of an epoch are a batch and the end of the data.
    assert [phases.count("fetch") for phases in phases_by_step(second)] == [2, 1]


def test_training_step_that_takes_the_iterator(tmp_path: Path) -> None:
    def from_iterator(self: Any, dataloader_iter: Any) -> torch.Tensor:
        return self.loss(next(dataloader_iter)[0])

    fit(tmp_path, 6, module=make_module(training_step=from_iterator))
    (file,) = trace_files(tmp_path)
    assert step_numbers(tmp_path) == [[1, 2]]
    assert all("fetch" in phases for phases in phases_by_step(file))


def test_dictionaries_as_batches(tmp_path: Path) -> None:
    batch = {"name": ["a", "b"], "pair": torch.zeros(2, 4), "y": torch.zeros(2, dtype=torch.int64)}
    data: Any = [batch] * 5
    module = make_module(training_step=lambda self, batch, batch_idx: self.loss((batch["pair"], batch["y"])))
    fit(tmp_path, DataLoader(data, batch_size=None), module=module)
    assert [s["samples"] for s in samples(tmp_path)] == [2] * 5


def test_compiled_module(tmp_path: Path) -> None:
    module = make_module()
    module.layer.compile(backend="eager")
    fit(tmp_path, module=module)
    assert step_numbers(tmp_path) == [[1, 2]]


def test_a_trainer_without_any_extras(tmp_path: Path) -> None:
    callback = quick(dirpath=tmp_path / "perf")
    package(PACKAGES[0]).Trainer(barebones=True, accelerator="cpu", max_epochs=1, callbacks=[callback]).fit(
        make_module(), loader(4)
    )
    assert step_numbers(tmp_path) == [[1, 2]]
    assert len(samples(tmp_path)) == 4


@pytest.mark.skipif(allocator_name() != "glibc", reason="needs glibc's allocator")
def test_memory_given_back_in_each_step_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken_bytes = 256 << 20  # more than glibc ever keeps by itself, and than tests before left free in its heap

    def step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        torch.empty(taken_bytes, dtype=torch.uint8).fill_(1)
        return self.loss(batch)

    # Other tests may keep the machine busy, and estimates made meanwhile are held back.
    monkeypatch.setattr(processor_module, "load_average", lambda: 0.0)
    monkeypatch.setattr(CoreUse, "facts", lambda _: {"core_wait": 0.0})
    fit(tmp_path, 13, module=make_module(training_step=step), callback=quick(skip_first=10))
    (file,) = trace_files(tmp_path)
    report = build_report([file])
    processor = report.ranks[0].metadata.processor
    assert processor is not None
    assert processor.allocator == "glibc"
    assert processor.page_faults is not None
    assert processor.page_fault_ns is not None
    # Of pages of 4 KiB, or of 64 KiB and more; torch and Lightning take some of their own.
    assert taken_bytes / (2 << 20) <= processor.page_faults < 1.5 * taken_bytes / 4096
    assert "cpu-page-faults" in [finding.kind for finding in report.findings]


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize(("options", "values"), [({"prog_bar": True}, ("loss",)), ({"on_epoch": True}, ())])
def test_lightning_reads_values_for_a_progress_bar_that_is_off(
    tmp_path: Path, name: str, options: dict[str, Any], values: tuple[str, ...]
) -> None:
    def step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.loss(batch)
        self.log("loss", loss, **options)
        self.log("later", loss, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    fit(tmp_path, name=name, module=make_module(name, training_step=step))
    (trace,) = trace_files(tmp_path)
    (rank,) = build_report([trace]).ranks
    assert rank.metadata.loop is not None
    assert rank.metadata.loop.bar_values == values
    reads = [event for event in events(trace) if event.get("name") == "aten::item"]
    assert len(reads) == 2 * len(values)  # in each recorded step
