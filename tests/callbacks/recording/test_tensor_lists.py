"""The lists of tensors in a recording, and what they make of the memory of a real training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_perf import PerfCallback
from lightning_perf.analysis.model.memory import DeviceMemory, memory
from lightning_perf.callbacks.recording import tensor_lists
from lightning_perf.callbacks.recording.tensor_lists import WindowLists, list_tensors
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.tensors import KINDS, TENSORS_KEY, read_tensors
from tests.callbacks.training import failing, make_module, make_trainer, trace_files


def sizes(lists):
    """The bytes of each kind. Tensors that share memory count once."""
    return {
        kind: sum({(device, address): size for device, address, size in blocks}.values())
        for kind, blocks in lists.items()
    }


def test_kinds_and_shared_memory():
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(8, 8, bias=False)
            self.second = torch.nn.Linear(8, 8, bias=False)
            self.second.weight = self.first.weight
            self.register_buffer("scale", torch.ones(3))
            self.register_buffer("view", torch.ones(100)[:50])
            self.register_buffer("nowhere", torch.ones(5, device="meta"))

    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    assert sizes(list_tensors(lambda: (model, [optimizer]))) == {
        "parameters": 4 * (64 + 3 + 100),
        "gradients": 0,
        "optimizer_state": 0,
        "lightning_perf": 0,
    }
    (model.second(model.first(torch.ones(1, 8))).sum() * 1.0).backward()
    optimizer.step()
    assert sizes(list_tensors(lambda: (model, [optimizer]))) == {
        "parameters": 4 * (64 + 3 + 100),
        "gradients": 4 * 64,
        "optimizer_state": 8 * 64 + 4,
        "lightning_perf": 0,
    }
    assert sizes(list_tensors(lambda: (None, []))) == dict.fromkeys(KINDS, 0)


def test_tensors_of_the_callback_are_listed_as_its_own(tmp_path):
    class Holding(FitObserver):
        """Holds one tensor of its own, and a parameter of the model."""

        def __init__(self) -> None:
            self.held, self.parameters = {"kept": [torch.ones(50)]}, list(model.parameters())

    Holding.__module__ = "lightning_perf.callbacks.holding"
    model = torch.nn.Linear(8, 8)
    lists = WindowLists(lambda: (model, []), [Holding()])
    lists.start()
    trace = read_tensors(json.dumps({TENSORS_KEY: lists.stop()}).encode(), b"")
    by_kind = {kind: int(trace.end.bytes[trace.end.kind == code].sum()) for code, kind in enumerate(KINDS)}
    assert by_kind == {"parameters": 4 * 72, "gradients": 0, "optimizer_state": 0, "lightning_perf": 4 * 50}


def test_a_failing_list_costs_only_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_lists, "list_tensors", failing(RuntimeError("a parameter without a storage")))
    callback = PerfCallback(
        dirpath=tmp_path, profile_memory=True, skip_first=1, warmup=1, active=1, report="none", probe=False,
        fingerprint="light",
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="recordings do not list parameters, gradients and optimizer state"):
        fit(make_module(), callback, tmp_path, torch.randn(8, 4), 2)
    (file,) = trace_files(tmp_path)
    value = memory(read_trace(file))
    assert not value.devices[-1].listed


def fit(module: Any, callback: PerfCallback, folder: Path, samples: torch.Tensor, batch_size: int) -> None:
    module.training_step = lambda batch, batch_idx: module.layer(batch).square().mean()
    dataset: Any = samples
    make_trainer(folder, callback).fit(module, torch.utils.data.DataLoader(dataset, batch_size))


def record(folder: Path, batch_size: int, *, with_stack: bool = False) -> tuple[torch.nn.Module, DeviceMemory]:
    """Train a network for a few batches, and return it with the memory of the recorded ones."""
    network = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)
    )
    module = make_module(
        configure_optimizers=lambda self: torch.optim.Adam(self.parameters(), foreach=False),
    )
    module.layer = network
    callback = PerfCallback(
        dirpath=folder, profile_memory=True, with_stack=with_stack, skip_first=2, warmup=1, active=2,
        report="none", probe=False, fingerprint="light",
    )  # fmt: skip
    fit(module, callback, folder, torch.randn(5 * batch_size, 32), batch_size)
    (file,) = trace_files(folder)
    value = memory(read_trace(file))
    assert value is not None
    (host,) = [device for device in value.devices if device.device is None]
    return network, host


def test_a_network_with_known_memory_and_larger_batches(tmp_path):
    network, host = record(tmp_path / "256", 256, with_stack=True)
    numbers = [parameter.numel() for parameter in network.parameters()]
    found = {part.category: part.bytes for part in host.parts}
    assert host.listed
    assert found["parameters"] == 4 * sum(numbers)
    # Two moments in FP32 per parameter, and a step count per tensor.
    assert found["optimizer state"] == 8 * sum(numbers) + 4 * len(numbers)
    # At the peak the results of both Tanh are kept for the backward, and a few scalars.
    assert 0 <= found["activations"] - 4 * 256 * 2 * 64 < 100
    assert {row.name for row in host.activations} == {"Sequential_0", "Tanh_0", "Tanh_1"}
    assert host.batch.available_bytes is None or host.batch.available_bytes > host.peak_allocated_bytes

    _, larger = record(tmp_path / "512", 512)
    assert host.batch.doubled_low_bytes <= larger.peak_allocated_bytes <= host.batch.doubled_high_bytes
