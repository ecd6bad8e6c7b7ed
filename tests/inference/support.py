"""Small models, inputs and documents for the tests; importable by a fresh process."""

import torch
from torch import Tensor, nn

from lightning_perf.inference.measurement.measure import Accuracy, Effort, Latency
from lightning_perf.inference.model import Subject
from lightning_perf.inference.results.tradeoff import Cell, ColdStart, Machine, Reload, Row, Tradeoff
from lightning_perf.statistics.values import Estimate

CPU = torch.device("cpu")


class Tiny(nn.Module):
    """Pictures ``(n, 1, 8, 8)`` to logits of 5 classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(pictures)).mean((2, 3)))


class InPlace(Tiny):
    def forward(self, pictures: Tensor) -> Tensor:
        return super().forward(pictures.div_(255))


class Random(Tiny):
    def forward(self, pictures: Tensor) -> Tensor:
        return torch.nn.functional.dropout(super().forward(pictures))  # which trains unless told otherwise


def needs_an_argument(width):
    return Tiny()


def no_model():
    return 3


def broken():
    raise OSError("the disk is gone")


class Block(nn.Module):
    """A residual block with everything that ties channels together."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(inputs + self.second(torch.relu(self.norm(self.first(inputs)))))


def small_network(classes: int = 10) -> nn.Sequential:
    """From (n, 1, 8, 8) to classes."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        Block(16),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    ).eval()


def student() -> nn.Module:
    """A model that learns from `small_network`."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def randomized(module: nn.Module, seed: int = 0) -> nn.Module:
    """Batch norms get statistics that folding has to get right."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                for tensor in (layer.running_mean, layer.running_var, layer.weight, layer.bias):
                    assert tensor is not None
                    tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return module.eval()


def residual_network() -> nn.Module:
    """From (n, 1, 16, 16) to four classes."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), Block(8))
    return randomized(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 4)))


def plain_network(seed: int = 0) -> nn.Module:
    """From (n, 1, 16, 16) to four classes, with few kernels to compile."""
    torch.manual_seed(seed)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return randomized(nn.Sequential(*layers, nn.Linear(4 * 14 * 14, 4)), seed)


def pictures(count: int, seed: int = 1) -> Tensor:
    """Bars of four directions with noise, ``(n, 1, 16, 16)``; the direction is ``index % 4``."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    waves = (rows, columns, rows + columns, rows - columns)
    found = [0.5 + 0.4 * torch.sin(waves[index % 4] * 0.9 + index) for index in range(count)]
    return (torch.stack(found) + 0.05 * torch.randn((count, 16, 16), generator=generator))[:, None]


def trained_network() -> nn.Module:
    """A residual network that tells the bars' directions apart."""
    network = residual_network().train()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    inputs, labels = pictures(64, seed=2), torch.arange(64) % 4
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    return network.eval()


def subject_of(module: nn.Module, inputs: Tensor | None = None, calibration: Tensor | None = None) -> Subject:
    """On one thread of the CPU, by default with inputs of `small_network`."""
    if inputs is None:
        inputs = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return Subject(module, inputs, inputs if calibration is None else calibration, CPU, 1)


def estimate(value, low=None, high=None):
    return Estimate(value, low, high, 0.95, 10, "test")


def row(name, p50_ms=1.0, correct=90, size=1000, p90_ms=None, **changes):
    latency = Latency(1, 1, 200, 0.9 * p50_ms, p50_ms, p90_ms or 1.1 * p50_ms, 2 * p50_ms, p50_ms, None, 1000 / p50_ms,
                      None if name == "eager" else estimate(1 / p50_ms, 0.9 / p50_ms, 1.1 / p50_ms))  # fmt: skip
    accuracy = Accuracy(correct, 100, 100, 0.8, 0.95, 0.99, 90.0 - correct, -1.5, 2.5 + 90 - correct)
    fields = {
        "parameters": 100, "size_bytes": size, "build_s": 1.0, "cold": ColdStart(1.0, 2.0, 10**8, None),
        "reload": Reload(0.0, 1e-3), "output_error": 1e-6, "accuracy": accuracy, "latencies": (latency,),
    } | changes  # fmt: skip
    return Row(name, (), name, "a runtime", **fields)


def tradeoff(rows, **changes):
    front = tuple(r.variant for r in rows if r.variant != "eager" and r.latencies)
    cell = Cell(1, 1, estimate(1.0, 0.99, 1.02), 0.02, front, (rows[0].variant,))
    machine = Machine("A CPU", "cpu", "A CPU", 2, "Linux", 0.1, 1.0, {"torch": "2.15.0"})
    fields = {"notes": ("a note [red]",), "rows": tuple(rows), "cells": (cell,)} | changes
    return Tradeoff(1, 1, "0.1.0", "Tiny", (1, 8, 8), machine, Effort(), 100, **fields)
