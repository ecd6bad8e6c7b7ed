"""A training that runs out of memory leaves a report of its own, and the error passes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from lightning_perf import PerfCallback, PerfLoop, PerfReport, analyze
from lightning_perf.callbacks import out_of_memory
from lightning_perf.callbacks.out_of_memory import describe_out_of_memory, is_out_of_memory, out_of_memory_lines
from lightning_perf.run_files.fit.memory_growth import TensorGroup
from lightning_perf.run_files.fit.out_of_memory import OutOfMemory, read_out_of_memory
from lightning_perf.units import format_bytes
from tests.callbacks.training import Points, failing, loader, make_module, make_trainer

CUDA_MESSAGE = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 39.39 GiB of which 1.31 MiB is "
    "free. Process 7 has 39.38 GiB memory in use.\nOf the allocated memory 38.00 GiB is allocated by PyTorch"
)


def too_much() -> torch.Tensor:
    return torch.empty(2**60)


class Hungry(torch.nn.Module):
    """A layer that needs 4 EiB in one of its calls."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self.phase = phase

    def forward(this, value: torch.Tensor) -> torch.Tensor:  # noqa: N805 - a name of the user's choice
        if this.phase == "forward":
            too_much()
        if this.phase == "backward":
            value = value * 1
            value.register_hook(lambda gradient: too_much())
        return value


class Greedy(torch.optim.SGD):
    """An optimizer that needs 4 EiB after its update."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return too_much()


def hungry_module(phase: str) -> Any:
    module = make_module()
    module.layer.append(Hungry(phase))
    if phase == "optimizer":
        module.configure_optimizers = lambda: Greedy(module.parameters(), 0.1)
    return module


def fit_fails(
    folder: Path, module: Any, data: Any = None, match: str | None = "tried to allocate", **options: Any
) -> None:
    callback = PerfCallback(dirpath=folder, fingerprint="light", probe=False, **options)
    with pytest.raises((RuntimeError, MemoryError), match=match):
        make_trainer(folder, callback).fit(module, data or loader(4))


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_a_failed_allocation_on_the_host(tmp_path, capsys, phase):
    module = hungry_module(phase)
    fit_fails(tmp_path, module)
    (found,) = read_out_of_memory(tmp_path)
    assert (found.rank, found.step, found.device, found.phase) == (0, 0, "cpu", phase)
    assert found.asked_bytes == 4 * 2**60
    assert (found.module, found.module_class) == (("layer.3", "Hungry") if phase == "forward" else (None, None))
    parameters = 4 * sum(parameter.numel() for parameter in module.parameters())
    assert (found.parameters_bytes, found.gradients_bytes, found.optimizer_state_bytes) == (
        parameters,
        parameters if phase == "optimizer" else found.gradients_bytes,
        0,
    )
    assert found.batch_size == 2
    assert "Check the shape" in found.fixes[0]
    printed = capsys.readouterr().out
    assert printed.startswith(f"PerfCallback: {found.sentence}\n")
    assert f"while allocating {format_bytes(4 * 2**60)}" in printed
    assert "out_of_memory.rank0.jsonl" in printed


def test_the_report_of_the_run_shows_it(tmp_path, capsys):
    fit_fails(tmp_path, hungry_module("forward"), report="none")
    assert capsys.readouterr().out == ""
    report = analyze(tmp_path)  # without a whole step
    (found,) = report.out_of_memory
    assert report.notes[0].startswith(found.sentence)
    report.print(width=200)
    for text in (report.to_markdown(), capsys.readouterr().out):
        assert "Out of memory" in text
        assert text.count("layer.3 (Hungry)") == 2
        assert text.index("layer.3 (Hungry)") < text.index("Where")  # before all that only saves time
    assert PerfReport.from_json(report.to_json()) == report


def test_an_error_in_the_data(tmp_path):
    data = Points(8, failing(MemoryError()))
    fit_fails(tmp_path, make_module(), torch.utils.data.DataLoader(data, 2), match=None)
    (found,) = read_out_of_memory(tmp_path)
    assert (found.phase, found.asked_bytes, found.message) == ("fetch", None, "MemoryError")
    assert "prefetch_factor" in found.fixes[0]


def test_a_failure_in_the_report_does_not_hide_the_error(tmp_path, monkeypatch):
    monkeypatch.setattr(out_of_memory, "describe_out_of_memory", failing(MemoryError()))
    with pytest.warns(RuntimeWarning, match="the report on missing memory is incomplete"):
        fit_fails(tmp_path, hungry_module("forward"))


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_error_of_a_gpu(monkeypatch, tmp_path, capsys):
    mib = 2**20
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda ordinal: (mib, 40 * mib))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda ordinal: 10 * mib)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda ordinal: 35 * mib)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).write_bytes(b"snapshot"))
    model = torch.nn.Linear(4, 4)
    error = raised(torch.OutOfMemoryError(CUDA_MESSAGE))
    found = describe_out_of_memory(error, lambda: (model, []), rank=3, step=7, batch_size=8)
    assert (found.device, found.asked_bytes, found.rank, found.step) == ("cuda:1", 20 * mib, 3, 7)
    assert found.message == CUDA_MESSAGE.splitlines()[0]
    assert (found.allocated_bytes, found.reserved_bytes, found.free_bytes, found.total_bytes) == (
        10 * mib,
        35 * mib,
        mib,
        40 * mib,
    )
    assert found.parameters_bytes == 0  # they are on the host
    assert "expandable_segments:True: 25.0 MiB are reserved" in found.fixes[0]
    assert "Halve batch_size to 4" in found.fixes[1]

    reports = out_of_memory.ErrorReporter()
    reports.folder = tmp_path

    def leave_report() -> list[str]:
        out_of_memory.report_out_of_memory(
            error, lambda: (model, []), reports, show="short", rank=3, step=7, batch_size=8
        )
        return capsys.readouterr().out.splitlines()

    lines = leave_report()
    assert (
        lines[0]
        == "PerfCallback: Rank 3 ran out of memory on cuda:1 in step 7: in the training, while allocating 20.0 MiB."
    )
    assert lines[-1] == f"  Who held it: lightning-perf analyze {tmp_path / 'memory.rank3.pickle'}"
    (saved,) = read_out_of_memory(tmp_path)
    assert saved.snapshot == "memory.rank3.pickle"
    assert (tmp_path / "memory.rank3.pickle").read_bytes() == b"snapshot"

    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", failing(RuntimeError("no memory")))
    leave_report()
    assert read_out_of_memory(tmp_path)[0].snapshot is None
    assert reports.messages == []


def test_what_the_program_keeps_is_named_before_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an H200 with torch 2.11: 5 % of its memory allowed, and four tensors of 1.6 GB kept."""
    message = (
        "CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 104.99 GiB "
        f"is free. {'Process 950 has 3.11 GiB memory in use. ' * 12}6.99 GiB allowed; Of the allocated memory 6.76 GiB"
    )
    kept = TensorGroup("Tensor float32 [400000000]", "cuda:0", False, 4, 6_400_000_000)
    groups: tuple[TensorGroup, ...] = (
        kept,
        replace(kept, device="cpu", bytes=9),
        TensorGroup("Parameter float32 [9]", "cuda:0", False, 1, 36),
    )
    monkeypatch.setattr(out_of_memory, "count_tensors", lambda _: groups)
    monkeypatch.setattr(
        out_of_memory, "_allocator", lambda _: {"allocated_bytes": 7_261_938_176, "free_bytes": 112_728_801_280}
    )

    def fixes() -> tuple[str, ...]:
        found = describe_out_of_memory(
            torch.OutOfMemoryError(message), lambda: (torch.nn.Linear(2, 2), []), rank=0, step=18
        )
        assert found.limit_bytes == int(6.99 * 2**30)
        return found.fixes

    first, second, *_ = fixes()
    assert first.startswith("Find the list or attribute that keeps 4 tensors float32 [400000000] (5.96 GiB)")
    assert second.startswith("Raise the limit of this process, 6.99 GiB: another 105 GiB of the device are free.")
    groups = (replace(kept, count=1), *groups[1:])
    assert fixes()[0] == second  # one large tensor is no collection
    groups = (replace(kept, bytes=2_000_000_000),)
    assert fixes()[0] == second


@pytest.mark.parametrize(
    ("report", "fix"),
    [
        ({"phase": "forward", "optimizer_state_bytes": 50, "total_bytes": 100}, "8-bit optimizer"),
        ({"phase": "optimizer"}, "fused=True"),
        ({"phase": "validation"}, "validation loader"),
        ({"phase": "checkpoint"}, "sharded checkpoints"),
    ],
)
def test_the_first_fix(report, fix):
    made = OutOfMemory(
        rank=0, step=None, module=None, module_class=None, device="cuda:0", asked_bytes=1, message="", **report
    )
    assert fix in out_of_memory._fixes(made)[0]
    assert out_of_memory_lines(made, None)[0].startswith("PerfCallback: Rank 0 ran out of memory on cuda:0: in the ")


@pytest.mark.parametrize(
    ("precision", "has_bf16", "advised"),
    [("32-true", True, '"bf16-mixed"'), ("32-true", False, '"16-mixed"'), ("bf16-mixed", True, ""), ("", True, "bf16")],
)
def test_the_fix_is_one_that_the_device_has_and_the_training_has_not(monkeypatch, precision, has_bf16, advised):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation: has_bf16)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    error = torch.OutOfMemoryError(CUDA_MESSAGE)
    found = describe_out_of_memory(error, lambda: (None, []), rank=0, step=1, batch_size=8, precision=precision)
    fixes = " ".join(found.fixes)
    assert ("precision=" in fixes) is bool(advised)
    assert advised in fixes
    assert "fsdp" not in " ".join(out_of_memory._fixes(replace(found, phase="optimizer"), can_shard=False))


def test_wrapped_errors_are_recognized():
    def wrap() -> None:
        try:
            too_much()
        except RuntimeError as error:
            raise ValueError("wrapped by a strategy") from error

    with pytest.raises(ValueError, match="wrapped") as caught:
        wrap()
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(KeyError("memory"))
    with pytest.raises(RuntimeError, match="size") as caught_too:
        torch.ones(2) @ torch.ones(3)
    assert not is_out_of_memory(caught_too.value)


def test_a_loop_without_a_trainer(tmp_path, capsys):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Hungry("forward"))
    optimizer = torch.optim.SGD(model.parameters())

    def train() -> None:
        with PerfLoop(model, optimizer, dirpath=tmp_path, fingerprint="light") as perf:
            for batch in perf.steps([torch.ones(1, 4)] * 3):
                model(batch).sum().backward()

    with pytest.raises(RuntimeError, match="tried to allocate"):
        train()
    (found,) = read_out_of_memory(tmp_path)
    assert (found.phase, found.module, found.step) == ("forward", "1", 0)
    assert f"PerfLoop: {found.sentence}" in capsys.readouterr().out
