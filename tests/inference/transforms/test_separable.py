from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_perf.inference.counting.count import count_model
from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.transforms.separable import Separable, separate
from tests.inference.transforms.support import Trainer, small_network, subject_of


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(6, 8, 5, stride=2, padding=2), (6, 20)),
        (nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect"), (6, 9, 9)),
        (nn.Conv2d(6, 8, (1, 5), dilation=(1, 2), bias=False), (6, 9, 12)),
        (nn.Conv3d(6, 8, 3, padding="same"), (6, 5, 5, 5)),
    ],
)
def test_a_convolution_that_is_separable_is_separated_exactly(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, shape: tuple[int, ...]
):
    torch.manual_seed(0)
    kernel = layer.weight.shape[2:]
    with torch.no_grad():
        layer.weight.copy_(torch.randn(8, 6, *[1] * len(kernel)) * torch.randn(1, 6, *kernel))
        inputs = torch.randn(2, *shape)
        torch.testing.assert_close(separate(layer)(inputs), layer(inputs), rtol=1e-4, atol=1e-4)


def test_any_other_is_separated_as_well_as_possible():
    torch.manual_seed(0)
    layer = nn.Conv2d(5, 7, 3, bias=False)
    depthwise, pointwise = separate(layer)
    product = (pointwise.weight * depthwise.weight.transpose(0, 1)).detach()  # (7, 5, 3, 3)
    for channel in range(5):
        matrix = layer.weight[:, channel].detach().flatten(1)
        rest = torch.linalg.svdvals(matrix)[1:].square().sum()
        error = (product[:, channel].flatten(1) - matrix).square().sum()
        torch.testing.assert_close(error, rest, rtol=1e-4, atol=1e-5)


def test_macs_shrink_by_the_formula_and_the_first_layer_stays():
    module = small_network()
    subject = subject_of(module)
    trainer = Trainer(subject, steps=1)
    changed = Separable().apply(module, subject, trainer)
    assert type(changed[0]) is nn.Conv2d
    assert changed[2].first[0].groups == 16
    macs = {layer.path: layer.macs for layer in count_model(module, (1, 8, 8)).layers}
    less = {layer.path: layer.macs for layer in count_model(changed, (1, 8, 8)).layers}
    assert less["2.first.0"] + less["2.first.1"] == pytest.approx(macs["2.first"] * (1 / 16 + 1 / 9))
    assert type(module[2].first) is nn.Conv2d
    assert len(trainer.calls) == 1
    assert not changed.training


def test_a_layer_used_twice_stays_one_layer_and_a_lone_convolution_is_replaced():
    layer = nn.Conv2d(8, 8, 3, padding=1)
    twice = nn.Sequential(layer, nn.ReLU(), layer)
    changed = Separable().apply(twice, subject_of(twice, (8, 6, 6)), lambda module, _: module)
    assert changed[0] is changed[2]
    alone = Separable().apply(layer, subject_of(layer, (8, 6, 6)), lambda module, _: module)
    assert isinstance(alone, nn.Sequential)


def test_nothing_to_replace_is_a_reason():
    for module in (nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(1, 8, 3)):
        subject = subject_of(module, (module.in_channels, 6, 6))
        with pytest.raises(VariantError, match="has no dense convolution"):
            Separable().apply(module, subject, lambda changed, _: changed)
    with pytest.raises(VariantError, match="separable needs training data"):
        Separable().apply(small_network(), subject_of(small_network()), None)
