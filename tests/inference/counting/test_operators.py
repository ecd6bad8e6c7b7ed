"""Each kind of operator against a sum by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_perf.inference.counting.count import count_model

HAND = {
    # name: (module, input without batch, MACs of one input)
    "linear": (nn.Linear(10, 7), (10,), 10 * 7),
    "linear over 6 tokens": (nn.Linear(10, 7, bias=False), (6, 10), 6 * 10 * 7),
    "conv1d": (nn.Conv1d(3, 8, 5, padding=2), (3, 20), 20 * 8 * 3 * 5),
    "conv2d": (nn.Conv2d(3, 8, 3), (3, 10, 12), 8 * 10 * 8 * 3 * 9),
    "conv3d": (nn.Conv3d(2, 4, 3, padding=1), (2, 5, 6, 7), 5 * 6 * 7 * 4 * 2 * 27),
    "grouped": (nn.Conv2d(6, 8, 3, groups=2, padding=1), (6, 9, 9), 81 * 8 * 3 * 9),
    "depthwise": (nn.Conv2d(6, 6, 3, groups=6, padding=1), (6, 9, 9), 81 * 6 * 9),
    "depthwise with multiplier 2": (nn.Conv2d(6, 12, 3, groups=6, padding=1), (6, 9, 9), 81 * 12 * 9),
    "dilated": (nn.Conv2d(3, 4, 3, dilation=2), (3, 11, 11), 7 * 7 * 4 * 3 * 9),
    "strided": (nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 11, 11), 6 * 6 * 4 * 3 * 9),
    "uneven kernel": (nn.Conv2d(3, 4, (1, 5)), (3, 8, 8), 8 * 4 * 4 * 3 * 5),
    # Each number of the input meets each weight of its channel once, wherever the products land.
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2), (3, 5, 5), 25 * 3 * 4 * 9),
    "transposed, grouped": (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (4, 5, 5), 25 * 4 * 3 * 4),
    "transposed 1d": (nn.ConvTranspose1d(3, 4, 4, stride=2), (3, 9), 9 * 3 * 4 * 4),
    "batch norm": (nn.BatchNorm2d(4), (4, 5, 5), 0),
    "layer norm": (nn.LayerNorm(5), (4, 5), 0),
    "pooling": (nn.AdaptiveAvgPool2d(1), (4, 5, 5), 0),
    "relu": (nn.ReLU(), (4,), 0),
    # Four gates, each input to hidden and hidden to hidden, at 5 steps.
    "lstm": (nn.LSTM(8, 16, batch_first=True), (5, 8), 5 * 4 * 16 * (8 + 16)),
    "lstm, two layers, both ways": (
        nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True),
        (5, 8),
        5 * 2 * (4 * 16 * (8 + 16) + 4 * 16 * (32 + 16)),
    ),
    "lstm with projection": (nn.LSTM(8, 16, batch_first=True, proj_size=6), (5, 8), 5 * (4 * 16 * (8 + 6) + 16 * 6)),
    "gru": (nn.GRU(8, 16, batch_first=True), (5, 8), 5 * 3 * 16 * (8 + 16)),
    "rnn": (nn.RNN(8, 16, batch_first=True), (5, 8), 5 * 16 * (8 + 16)),
    "gru cell": (nn.GRUCell(8, 16), (8,), 3 * 16 * (8 + 16)),
    "bilinear resampling": (nn.Upsample(scale_factor=2, mode="bilinear"), (3, 4, 4), 0),
    # Query, key, value and output projections; then scores and weighted values, both tokens² · width over all heads.
    "transformer layer": (
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
        (7, 32),
        4 * 7 * 32 * 32 + 2 * 7 * 7 * 32 + 2 * 7 * 32 * 64,
    ),
}


@pytest.mark.parametrize("name", HAND)
def test_macs_are_those_counted_by_hand(name: str):
    module, shape, macs = HAND[name]
    for batch in (1, 3):
        count = count_model(module, shape, batch)
        assert count.macs == batch * macs
        assert count.flops == 2 * count.macs
        assert not count.uncounted


class Attention(nn.Module):
    """Self-attention of 4 heads by the functional form, with fewer heads for keys and values, and both mask kinds."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.project = nn.Linear(32, 96)

    def forward(self, tokens: Tensor) -> Tensor:
        n, length, _ = tokens.shape
        q, k, v = self.project(tokens).view(n, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


@pytest.mark.parametrize("causal", [False, True])
def test_functional_attention_counts_for_the_module_that_calls_it(causal: bool):
    count = count_model(Attention(causal), (7, 32), batch=2)
    rows = {layer.path: layer for layer in count.layers}
    assert rows["project"].macs == 2 * 7 * 32 * 96
    assert rows[""].macs == 2 * 2 * 7 * 7 * 32  # the whole square, masked or not
    assert rows[""].kind == "Attention"


def test_an_operator_without_a_formula_is_named():
    class Cdist(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return torch.fft.fft(inputs).abs()

    count = count_model(Cdist(), (5, 8))
    (row,) = count.uncounted
    assert any("fft" in name for name in row.uncounted)


def test_products_that_torch_has_no_formula_for_are_counted():
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.zeros(3, 6))

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.mv(self.matrix, inputs[0]) + torch.dot(inputs[0], inputs[0])

    assert count_model(Products(), (6,)).macs == 3 * 6 + 6
