"""The compilations of tiny fits, in the file that `PerfCallback` writes and in the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import lightning_perf
from lightning_perf.analysis.compilation import summarize_compilations
from lightning_perf.callbacks.compilation import monitor as monitor_module
from lightning_perf.callbacks.compilation.monitor import CompileMonitor
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.findings.compilation import frame_name
from lightning_perf.run_files.fit.account import read_account
from lightning_perf.run_files.fit.compilations import COMPILATIONS, Compilation
from tests.callbacks.perf_training import fit, quick
from tests.callbacks.training import Points, context, make_module
from tests.support.known import known


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def read(folder: Path) -> list[Compilation]:
    (path,) = folder.rglob("compile.rank0.jsonl")
    return list(COMPILATIONS.read(path))


class Compiled:
    """What torch would report, one list per look."""

    is_unused = False

    def __init__(self, looks: list[list[Compilation]]) -> None:
        self.looks = looks
        self.closed = False

    def listen(self, on_start: Any) -> None:
        pass

    def new_compilations(self) -> list[Compilation]:
        return self.looks.pop(0) if self.looks else []

    def close(self) -> None:
        self.closed = True


def made(number: int, **fields: Any) -> Compilation:
    return Compilation(f"0/{number}", "forward", "before training", None, False, 1000, **fields)


def test_each_compilation_gets_its_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [[made(number)] for number in range(6)]
    fake = Compiled(looks)
    monkeypatch.setattr(monitor_module, "TorchCompiler", lambda since_ns: fake)
    state = FitState()
    monitor = CompileMonitor(context(tmp_path, state=state))
    state.recording = True
    monitor.on_step_start()
    monitor.on_training_pause()
    state.recording = False
    monitor.on_training_resume()
    state.step = state.whole_steps = 1
    monitor.on_step_start()
    monitor.close()
    found = [(each.moment, each.step, each.recorded) for each in COMPILATIONS.read_all(tmp_path)]
    assert found == [
        ("before training", None, False),
        ("before training", None, False),
        ("first step", 0, True),
        ("between steps", 0, False),
        ("first step", 0, False),
        ("step", 1, False),
    ]
    assert fake.closed


def test_an_error_is_reported_once_and_ends_the_monitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Compiled):
        def new_compilations(self) -> list[Compilation]:
            raise RuntimeError("another torch")

    broken = Broken([])
    monkeypatch.setattr(monitor_module, "TorchCompiler", lambda since_ns: broken)
    errors = ErrorReporter()
    with pytest.warns(RuntimeWarning, match="compilations are not followed any more.*another torch"):
        monitor = CompileMonitor(context(tmp_path, errors=errors))
    monitor.on_step_start()
    monitor.close()
    assert len(errors.messages) == 1
    assert broken.closed
    assert list(tmp_path.iterdir()) == []


def test_modules_are_named_by_the_lines_of_their_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Block.forward.__code__.co_firstlineno
    looks = [[made(0, file=__file__, line=line + 1)], [made(1, file=__file__, line=1)]]
    monkeypatch.setattr(monitor_module, "TorchCompiler", lambda since_ns: Compiled(looks))
    CompileMonitor(context(tmp_path, model=nn.ModuleList([Block(), Block(), Block()]))).close()
    assert [each.module for each in COMPILATIONS.read_all(tmp_path)] == ["0 and 2 more (Block)", ""]


def test_compiled_modules_of_torch_are_named_by_their_place(tmp_path: Path) -> None:
    """torch compiles a function of its own around them. Its name, its file and its line say nothing."""
    model = nn.ModuleList([torch.compile(nn.Linear(4, 4), backend="eager") for _ in range(2)])  # type: ignore[misc]
    monitor = CompileMonitor(context(tmp_path, model=model))
    for layer in model:
        layer(torch.zeros(2, 4))
    monitor.close()
    found = COMPILATIONS.read_all(tmp_path)
    assert {each.module for each in found} == {"0 and 1 more (Linear)"}
    report = known(summarize_compilations(found))
    assert frame_name(report.frames[0]) == "forward of 0 and 1 more (Linear)"


def test_a_changing_shape_is_in_the_report(tmp_path: Path) -> None:
    module = make_module()
    module.block = torch.compile(Block(), backend="eager")
    module.loss = lambda batch: module.block(batch[0]).mean()
    batches = DataLoader(Points(9), batch_sampler=[[0, 1], [2, 3], [4, 5, 6], [7, 8]])  # the third one is larger
    fit(tmp_path, batches, module=module)
    found = read(tmp_path)
    assert [(each.moment, each.step, each.module) for each in found] == [
        ("first step", 0, "block (Block)"),
        ("step", 2, "block (Block)"),
    ]
    account = read_account(next(tmp_path.rglob("account.rank0.jsonl")))
    assert account.compile_ns is not None
    assert account.compile_ns == pytest.approx(found[0].time_ns, abs=2000)  # torch rounds to microseconds
    report = lightning_perf.analyze(next(tmp_path.rglob("compile.rank0.jsonl")).parent)
    summary = report.compilation
    assert summary is not None
    assert (summary.compilations, summary.recompilations, summary.steps) == (2, 1, 4)
    assert summary.first_step_ns == found[0].time_ns
    assert summary.avoidable_ns == summary.step_ns == found[1].time_ns
    (frame,) = summary.frames
    assert frame.recompilations[0].cause == "shape"
    assert frame.calls_per_step == 1.0  # in the recording of steps 1 and 2
    assert summary.recorded_ns_per_step is not None
    assert summary.recorded_ns_per_step >= 0.9 * found[1].time_ns / 2


def test_a_fit_without_compiled_code_has_no_file(tmp_path: Path) -> None:
    fit(tmp_path, 3, module=make_module(), callback=quick())
    assert not list(tmp_path.rglob("compile.*"))
    report = lightning_perf.analyze(next(tmp_path.rglob("steps.rank0.jsonl")).parent)
    assert report.compilation is None


def test_compilations_of_the_sanity_check_are_before_training(tmp_path: Path) -> None:
    module = make_module()
    forward = torch.compile(Block(), backend="eager")
    module.validation_step = lambda batch, batch_idx: forward(torch.zeros(2, 4))
    fit(tmp_path, 2, module=module, val=2, num_sanity_val_steps=1, limit_val_batches=1)
    assert [each.moment for each in read(tmp_path)] == ["before training"]
    account = read_account(next(tmp_path.rglob("account.rank0.jsonl")))
    assert account.compile_ns is None  # none of it in the first step


def test_a_state_is_enough_of_a_model() -> None:
    CompileMonitor(context(model=SimpleNamespace())).close()
