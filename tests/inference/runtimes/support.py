"""Small models, and what goes with them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_perf.inference.model.subject import Subject

CPU = torch.device("cpu")


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first_norm(self.first(inputs)))
        return torch.relu(inputs + self.second_norm(self.second(hidden)))


class Undecided(nn.Module):
    """Its path depends on the numbers."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sin() if inputs.sum() > 0 else inputs.cos()


class Tupled(nn.Module):
    """Gives more than a tensor."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, inputs


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


def residual_network(seed: int = 0) -> nn.Module:
    """From (n, 1, 16, 16) to four classes."""
    torch.manual_seed(seed)
    return randomized(
        nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            Block(8),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(128, 4),
        ),
        seed,
    )


def plain_network(seed: int = 0) -> nn.Module:
    """From (n, 1, 16, 16) to four classes, with few kernels to compile."""
    torch.manual_seed(seed)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return randomized(nn.Sequential(*layers, nn.Linear(16, 4)), seed)


def perceptron() -> nn.Module:
    """From (n, 12) to three classes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).eval()


def pictures(count: int, seed: int = 1) -> Tensor:
    """Bars of four directions with noise, ``(n, 1, 16, 16)``; the direction is ``index % 4``."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    waves = (rows, columns, rows + columns, rows - columns)
    found = [0.5 + 0.4 * torch.sin(waves[index % 4] * 0.9 + index) for index in range(count)]
    return (torch.stack(found) + 0.05 * torch.randn((count, 16, 16), generator=generator))[:, None]


def trained_network() -> nn.Module:
    """A residual network that tells the bars' directions apart."""
    torch.manual_seed(0)
    network = residual_network().train()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    inputs, labels = pictures(64, seed=2), torch.arange(64) % 4
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    return network.eval()


def subject_of(module: nn.Module, inputs: Tensor, calibration: Tensor | None = None) -> Subject:
    """On one thread of the CPU."""
    return Subject(module, inputs, inputs if calibration is None else calibration, CPU, 1)
