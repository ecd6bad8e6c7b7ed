"""The sampled matrices of a layer multiply to its output and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.callbacks.forecast.matrices import MatrixSampler, MatrixSamples, covered_layers


def sample(layer: Any, inputs: torch.Tensor) -> tuple[MatrixSamples, MatrixSampler, torch.Tensor, torch.Tensor]:
    """Sample a layer; also return its output and the gradient of its output."""
    output = layer(inputs)
    sampler = MatrixSampler(layer, inputs.detach(), output, torch.Generator().manual_seed(0))
    gradient = torch.randn_like(output)
    output.backward(gradient)
    sampler.add_gradient(gradient)
    return sampler.samples(), sampler, output.detach(), gradient


@pytest.mark.parametrize("shape", [(24, 20), (3, 8, 20)])
def test_linear(shape: tuple[int, ...]) -> None:
    layer = nn.Linear(20, 12, bias=False)
    inputs = torch.randn(shape, requires_grad=True)
    samples, sampler, output, _ = sample(layer, inputs)
    assert (sampler.shape.rows, sampler.shape.inputs, sampler.shape.outputs) == (24, 20, 12)
    assert sampler.shape.sizes == {"rows": 24, "inputs": 20, "outputs": 12}
    assert torch.allclose(samples.activation @ samples.weight.T, output.reshape(24, 12), atol=1e-5)
    assert samples.gradient is not None
    assert samples.weight_by_input is not None
    assert samples.gradient_by_output is not None
    assert samples.activation_by_input is not None
    assert inputs.grad is not None
    assert layer.weight.grad is not None
    assert torch.allclose(samples.gradient @ samples.weight_by_input.T, inputs.grad.reshape(24, 20), atol=1e-5)
    assert torch.allclose(samples.gradient_by_output @ samples.activation_by_input.T, layer.weight.grad, atol=1e-5)


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
    inputs = torch.randn(shape)
    samples, sampler, output, _ = sample(layer, inputs)
    dimensions = layer.weight.dim() - 2
    batched = output[None] if output.dim() == dimensions + 1 else output
    assert sampler.shape.rows == batched.numel() // batched.shape[1]
    positions = batched.movedim(1, -1).reshape(sampler.shape.rows, -1)
    assert torch.allclose(samples.activation @ samples.weight.T, positions, atol=1e-5)
    assert samples.gradient_by_output is not None
    assert samples.activation_by_input is not None
    # The order of a sum's terms: kernel positions, and channels inside each.
    weight_gradient = layer.weight.grad.movedim(1, -1).reshape(layer.weight.shape[0], -1)
    chosen = samples.activation_by_input.shape[0]
    product = samples.gradient_by_output @ samples.activation_by_input.T
    if chosen == weight_gradient.shape[1]:
        assert torch.allclose(product, weight_gradient, atol=1e-4)
    else:
        for column in product.T:
            assert torch.isclose(weight_gradient.T, column, atol=1e-4).all(1).any()
    assert sampler.shape.sizes == {"input channels": layer.in_channels, "output channels": layer.out_channels}


def test_long_sums_are_sampled_in_whole_blocks() -> None:
    layer = nn.Linear(10_000, 64, bias=False)
    inputs = torch.arange(10_000.0).repeat(100, 1)
    samples, _, _, _ = sample(layer, inputs)
    assert samples.activation.shape == (32, 4096)
    starts = samples.activation[0].reshape(-1, 32)
    assert torch.equal(starts - starts[:, :1], torch.arange(32.0).expand_as(starts))
    assert not (starts[:, 0] % 32).any()
    assert samples.activation_by_input is not None
    assert samples.activation_by_input.shape == (32, 100)


def test_covered_layers() -> None:
    model = nn.ModuleDict({
        "linear": nn.Linear(4, 4),
        "depthwise": nn.Conv2d(4, 4, 3, groups=4),
        "norm": nn.BatchNorm2d(4),
        "blocks": nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU()),
        "compiled": torch.compile(nn.Sequential(nn.Linear(4, 4))),  # type: ignore[dict-item]
    })  # fmt: skip
    assert list(covered_layers(model)) == ["linear", "blocks.0"]
