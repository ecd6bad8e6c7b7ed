"""Second derivatives in real recordings of torch.profiler: which trainings have one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from lightning_perf.analysis.model.recompute import has_second_derivative, recompute
from lightning_perf.trace.reader import read_trace

Loss = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]


def gradient(of: torch.Tensor, by: torch.Tensor, *, differentiable: bool) -> torch.Tensor:
    return torch.autograd.grad(of.sum(), by, create_graph=differentiable, retain_graph=True)[0]


def plain(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return model(inputs).pow(2).mean()


def forces(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    energy = model(inputs)
    return (energy + gradient(energy, inputs, differentiable=True).sum()).pow(2).mean()


def pinn(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    first = gradient(model(inputs), inputs, differentiable=True)
    return gradient(first, inputs, differentiable=True).pow(2).mean()


def saliency(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    output = model(inputs)
    return (output + gradient(output, inputs, differentiable=False).sum()).pow(2).mean()


def checkpointed(*, reentrant: bool) -> Loss:
    def loss(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return checkpoint(model, inputs, use_reentrant=reentrant).pow(2).mean()

    return loss


@pytest.mark.parametrize(
    ("loss", "second", "repeats"),
    [
        (plain, False, False),
        (saliency, False, False),
        (forces, True, False),
        (pinn, True, False),
        (checkpointed(reentrant=True), False, True),
        (checkpointed(reentrant=False), False, True),
    ],
    ids=["plain", "saliency", "forces", "pinn", "reentrant", "non-reentrant"],
)
def test_which_trainings_differentiate_twice(loss: Loss, second: bool, repeats: bool, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        for step in range(3):
            with record_function(f"ProfilerStep#{step}"):
                loss(model, torch.randn(2, 4, requires_grad=True)).backward()
    recorder.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = read_trace(tmp_path / "trace.json")
    assert has_second_derivative(trace) == second
    assert (recompute(trace) is not None) == repeats
