"""FLOPs from shapes against counts worked out by hand and those that torch publishes for the same operators."""

import json

import pytest
import torch

from lightning_perf.analysis.kernels.flops import _ATTENTION, convolution, operator_flops

Q = [2, 8, 128, 64]


@pytest.mark.parametrize(
    ("name", "shapes", "flops"),
    [
        ("aten::mm", [[3, 5], [5, 7]], 2 * 3 * 5 * 7),
        ("aten::addmm", [[7], [3, 5], [5, 7], [], []], 2 * 3 * 5 * 7),
        ("aten::bmm", [[4, 3, 5], [4, 5, 7]], 4 * 2 * 3 * 5 * 7),
        ("aten::baddbmm", [[4, 3, 7], [4, 3, 5], [4, 5, 7]], 4 * 2 * 3 * 5 * 7),
        ("aten::linear", [[2, 3, 5], [7, 5], [7]], 2 * 6 * 5 * 7),
        ("aten::_addmm_activation", [[7], [3, 5], [5, 7]], 2 * 3 * 5 * 7),
        # Three groups share 12 rows, 12 columns of the result, or 12 summands. Or each has matrices of its own.
        ("aten::_grouped_mm", [[12, 5], [3, 5, 7], [3]], 2 * 12 * 5 * 7),
        ("aten::_grouped_mm", [[3, 4, 5], [5, 12], [3]], 2 * 4 * 5 * 12),
        ("aten::_grouped_mm", [[4, 12], [12, 7], [3]], 2 * 4 * 12 * 7),
        ("aten::_grouped_mm", [[3, 4, 5], [3, 5, 7]], 3 * 2 * 4 * 5 * 7),
        # Inductor passes buffers, whose factors may be transposed or flattened: bias, factors, another input, result.
        ("triton_tem_fused_mm_3", [[4, 6, 5], [7, 5], [24, 7]], 2 * 24 * 5 * 7),
        ("triton_tem_fused_addmm_relu_3", [[7], [24, 5], [5, 7], [24, 7], [24, 7], []], 2 * 24 * 5 * 7),
        ("triton_tem_fused_bmm_1", [[4, 3, 5], [4, 7, 5], [4, 3, 7]], 4 * 2 * 3 * 5 * 7),
        ("triton_tem_fused_mm_3", [[24, 5], [5, 7], [24, 8]], None),
        ("triton_tem_fused_flex_attention_0", [[2, 8, 64, 16]] * 4, None),
        ("triton_poi_fused_mm_0", [[24, 5], [5, 7], [24, 7]], None),
        ("tex_ts::te_gemm_ts", [[7, 5], [1], [], [], [], [24, 5], [1], [], [], [], [24, 7]], 2 * 24 * 5 * 7),
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
    assert operator_flops(name, json.dumps(shapes)) == (None if flops is None else (flops, flops))


ONE = 2 * 2 * 8 * 128 * 128 * 64
"""One product of `Q` with as many keys."""

LAST = [2, 128, 8, 64]
"""The same, with the heads after the time."""

PACKED = [1024, 8, 64]


def values(place, value):
    return json.dumps([""] * place + [value])


@pytest.mark.parametrize(
    ("name", "shapes", "inputs", "least", "most"),
    [
        # Scores and their product with the values. In the backward the scores again, and four gradients.
        ("aten::_scaled_dot_product_flash_attention", [Q, Q, Q], values(4, "False"), 2 * ONE, 2 * ONE),
        ("aten::_scaled_dot_product_flash_attention", [Q, Q, Q], values(4, "True"), ONE, ONE),
        ("aten::_scaled_dot_product_flash_attention", [Q, Q, Q], "", ONE, 2 * ONE),
        ("aten::_scaled_dot_product_cudnn_attention_backward", [Q] * 4, values(14, "True"), 2.5 * ONE, 2.5 * ONE),
        ("aten::_efficient_attention_forward", [LAST] * 3, values(9, "2"), ONE, ONE),
        ("flash_attn::_flash_attn_backward", [LAST] * 4, values(11, "False"), 5 * ONE, 5 * ONE),
        ("FlashAttnFunc", [LAST] * 3, "", ONE, 2 * ONE),
        ("aten::_flash_attention_forward", [LAST] * 3, values(11, "64"), None, None),  # a sliding window
        # Half as many keys: with the first positions alike, the last queries see all of them.
        ("aten::_scaled_dot_product_efficient_attention", [Q, *[[2, 8, 64, 64]] * 2], values(6, "True"), 0.75 * ONE, 0),
        ("flash_attn::_flash_attn_forward", [LAST, *[[2, 64, 8, 64]] * 2], values(5, "True"), 0.25 * ONE, 0),
    ],
)
def test_attention(name, shapes, inputs, least, most):
    assert operator_flops(name, json.dumps(shapes), inputs) == (None if least is None else (least, most or least))


def test_packed_sequences_of_unknown_lengths_are_a_range():
    """Four sequences with 1,024 tokens together, none longer than 512: 4 × 256, at most 2 × 512."""
    inputs = json.dumps(["", "", "", "", "", "512", "512", "0.", "", "True"])
    shapes = json.dumps([PACKED, PACKED, PACKED, [5], [5]])
    pair = 2 * 8 * 2 * 64  # two products
    found = operator_flops("flash_attn::_flash_attn_varlen_forward", shapes, inputs)
    assert found == (pair * 4 * 256**2 // 2, pair * 2 * 512**2 // 2)


@pytest.mark.parametrize("name", [name for name in _ATTENTION if name.startswith("aten::")])
def test_the_places_of_inputs_are_those_of_torch(name):
    places = _ATTENTION[name]
    inputs = [each.name for each in getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema.arguments]
    assert inputs[places.query : places.query + 3] == ["query", "key", "value"]
    assert inputs[places.causal] in ("is_causal", "custom_mask_type")
    assert ("backward" in name) == places.backward
    if places.lengths is not None:
        assert inputs[places.lengths] in ("cum_seq_q", "cu_seqlens_q")
        assert inputs[places.lengths + 3] in ("max_k", "max_seqlen_k")
        assert all("window_size" in inputs[place] for place in places.window)


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


@pytest.mark.parametrize("sizes", [(1, 0, 1), (2, 1, 1), (3, 2, 2)])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_output_of_a_convolution_follows_from_its_recorded_inputs(sizes, transposed):
    stride, padding, dilation = sizes
    data, weight = torch.empty(2, 6, 19, 23, device="meta"), torch.empty(6, 6, 3, 3, device="meta")
    real = torch.convolution(data, weight, None, [stride], [padding], [dilation], transposed, [0], 1)
    told = json.dumps(
        ["", "", "", f"[{stride}]", f"[{padding}, {padding}]", f"[{dilation}]", str(transposed), "[0]", "1"]
    )
    found = convolution("aten::convolution", json.dumps([list(data.shape), list(weight.shape)]), told)
    places = 19 * 23 if transposed else real.shape[2] * real.shape[3]
    assert found.flops(found.output) == 2 * 2 * places * 6 * 6 * 9


@pytest.mark.parametrize(("mask", "gradients"), [("[True, True, False]", 2), ("[False, True, True]", 1), ("", None)])
def test_the_gradients_of_a_convolution_are_recorded(mask, gradients):
    shapes = json.dumps([[1, 32, 10, 10], [1, 16, 12, 12], [32, 16, 3, 3]])
    assert convolution("aten::convolution_backward", shapes, values(10, mask)).gradients == gradients
