"""Small trained models and what goes with them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_perf.inference.model.subject import Subject


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


def subject_of(module: nn.Module, shape: tuple[int, ...] = (1, 8, 8)) -> Subject:
    inputs = torch.rand(4, *shape, generator=torch.Generator().manual_seed(1))
    return Subject(module, inputs, inputs, torch.device("cpu"), 1)


class Trainer:
    """Stands for fine-tuning: notes what it was given and trains a few steps towards given outputs."""

    def __init__(self, subject: Subject, steps: int = 0) -> None:
        self.subject, self.steps = subject, steps
        self.calls: list[tuple[nn.Module, nn.Module | None]] = []

    def __call__(self, module: nn.Module, teacher: nn.Module | None) -> nn.Module:
        self.calls.append((module, teacher))
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        for _ in range(self.steps):
            optimizer.zero_grad()
            module(self.subject.inputs.clone()).square().mean().backward()
            optimizer.step()
        return module
