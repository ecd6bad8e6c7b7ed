"""The sampled matrices of a layer multiply to its output and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.callbacks.forecast.matrices import MatrixSampler, covered_layers


def sample(layer: Any, inputs: torch.Tensor) -> tuple[MatrixSampler, dict[str, torch.Tensor], torch.Tensor]:
    """Sample a layer. Return the sampler, the product of the samples of each product, and the layer's output."""
    output = layer(inputs)
    sampler = MatrixSampler(layer, inputs.detach(), output, torch.Generator().manual_seed(0))
    gradient = torch.randn_like(output)
    output.backward(gradient)
    sampler.add_gradient(gradient)
    products: dict[str, torch.Tensor] = {each.product: each.left @ each.right.T for each in sampler.samples()}
    return sampler, products, output.detach()


@pytest.mark.parametrize("shape", [(24, 20), (3, 8, 20)])
def test_linear(shape: tuple[int, ...]) -> None:
    layer = nn.Linear(20, 12, bias=False)
    inputs = torch.randn(shape, requires_grad=True)
    sampler, products, output = sample(layer, inputs)
    assert sampler.shape == (24, 20, 12, {"rows": 24, "inputs": 20, "outputs": 12})
    assert inputs.grad is not None
    assert layer.weight.grad is not None
    assert torch.allclose(products["forward"], output.reshape(24, 12), atol=1e-5)
    assert torch.allclose(products["input gradient"], inputs.grad.reshape(24, 20), atol=1e-5)
    assert torch.allclose(products["weight gradient"], layer.weight.grad, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False), (2, 3, 5, 7)),
        (nn.Conv2d(4, 6, (1, 3), padding="same", dilation=2, bias=False), (1, 4, 4, 6)),
        (nn.Conv2d(4, 6, 2, padding="valid", bias=False), (4, 4, 4)),  # one image without a batch dimension
        (nn.Conv1d(3, 4, 5, padding=2, bias=False), (2, 3, 6)),
        (nn.Conv3d(2, 3, 2, bias=False), (1, 2, 3, 3, 4)),
    ],
    ids=["stride", "same", "unbatched", "1d", "3d"],
)
def test_convolution(layer: Any, shape: tuple[int, ...]) -> None:
    sampler, products, output = sample(layer, torch.randn(shape))
    batched = output[None] if output.dim() == layer.weight.dim() - 1 else output
    assert sampler.shape.rows == batched.numel() // batched.shape[1]
    assert sampler.shape.sizes == {"input channels": layer.in_channels, "output channels": layer.out_channels}
    positions = batched.movedim(1, -1).reshape(sampler.shape.rows, -1)
    assert torch.allclose(products["forward"], positions, atol=1e-5)
    # The order of a sum's terms: kernel positions, and channels inside each. Of many terms, some are sampled.
    weight_gradient = layer.weight.grad.movedim(1, -1).reshape(layer.weight.shape[0], -1)
    for column in products["weight gradient"].T:
        assert torch.isclose(weight_gradient.T, column, atol=1e-4).all(1).any()


def test_long_sums_are_sampled_in_whole_blocks() -> None:
    layer = nn.Linear(10_000, 64, bias=False)
    inputs = torch.arange(10_000.0).repeat(100, 1)
    forward, _, weight_gradient = sample(layer, inputs)[0].samples()
    assert forward.left.shape == (32, 4096)
    starts = forward.left[0].reshape(-1, 32)
    assert torch.equal(starts - starts[:, :1], torch.arange(32.0).expand_as(starts))
    assert not (starts[:, 0] % 32).any()
    assert weight_gradient.right.shape == (32, 100)


def test_covered_layers() -> None:
    model = nn.ModuleDict({
        "linear": nn.Linear(4, 4),
        "depthwise": nn.Conv2d(4, 4, 3, groups=4),
        "norm": nn.BatchNorm2d(4),
        "blocks": nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU()),
        "compiled": torch.compile(nn.Sequential(nn.Linear(4, 4))),  # type: ignore[dict-item]
    })  # fmt: skip
    assert list(covered_layers(model)) == ["linear", "blocks.0"]
