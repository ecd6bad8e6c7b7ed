"""FLOPs from shapes against counts worked out by hand and those that torch publishes for the same operators."""

import json

import pytest

from lightning_perf.analysis.kernels.flops import convolution, operator_flops

Q = [2, 8, 128, 64]


@pytest.mark.parametrize(
    ("name", "shapes", "flops"),
    [
        ("aten::mm", [[3, 5], [5, 7]], 2 * 3 * 5 * 7),
        ("aten::addmm", [[7], [3, 5], [5, 7], [], []], 2 * 3 * 5 * 7),
        ("aten::bmm", [[4, 3, 5], [4, 5, 7]], 4 * 2 * 3 * 5 * 7),
        ("aten::baddbmm", [[4, 3, 7], [4, 3, 5], [4, 5, 7]], 4 * 2 * 3 * 5 * 7),
        ("aten::linear", [[2, 3, 5], [7, 5], [7]], 2 * 6 * 5 * 7),
        # Scores and their product with the values.
        ("aten::_scaled_dot_product_flash_attention", [Q, Q, Q], 2 * (2 * 2 * 8 * 128 * 128 * 64)),
        # Scores again, and the gradients of values, scores, queries and keys.
        ("aten::_scaled_dot_product_flash_attention_backward", [Q, Q, Q, Q], 5 * (2 * 2 * 8 * 128 * 128 * 64)),
        ("aten::relu", [[3, 5]], None),
        ("aten::mm", [[3, 5]], None),
        ("aten::mm", [], None),
        ("aten::mm", [[], []], None),
        ("aten::mm", [[3, "?"], [5, 7]], None),
        ("aten::mm", {"a": 1}, None),
        ("aten::mm", [[0, 5], [5, 7]], None),
    ],
)
def test_counts(name, shapes, flops):
    assert operator_flops(name, json.dumps(shapes)) == flops


@pytest.mark.parametrize("broken", ["", "[[3,5],", "null", "7", "[" * 100_000])
def test_shapes_that_are_none(broken):
    assert operator_flops("aten::mm", broken) is None
    assert convolution("aten::conv2d", broken) is None


def test_convolutions_forward_and_backward_of_every_generation_agree():
    data, weight, out = [8, 64, 56, 56], [128, 64, 3, 3], [8, 128, 28, 28]
    flops = 2 * 8 * 128 * 28 * 28 * 64 * 3 * 3
    forward = convolution("aten::cudnn_convolution", json.dumps([data, weight, [], []]))
    assert forward.output is None
    for name, shapes in (
        ("aten::convolution_backward", [out, data, weight]),
        ("aten::cudnn_convolution_backward", [data, out, weight]),
    ):
        backward = convolution(name, json.dumps(shapes))
        assert (backward.data, backward.weight) == (forward.data, forward.weight)
        assert backward.flops(backward.output) == flops


def test_groups_count_their_own_channels_only():
    depthwise = convolution("aten::convolution_backward", json.dumps([[1, 32, 10, 10], [1, 32, 12, 12], [32, 1, 3, 3]]))
    assert depthwise.flops(depthwise.output) == 2 * 32 * 100 * 9
