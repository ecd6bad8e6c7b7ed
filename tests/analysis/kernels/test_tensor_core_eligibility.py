from typing import Any

import pytest

from lightning_perf.analysis.kernels.arithmetic import arithmetic, device_properties, has_tensor_cores
from lightning_perf.trace.description import DeviceProperties
from tests.analysis.kernels.test_arithmetic import FLOAT, HALF, Kernels
from tests.support.trace_builder import TraceBuilder

EVEN, ODD = [[64, 128], [128, 256]], [[64, 127], [127, 256]]
POINTWISE, STEM = [[8, 64, 7, 7], [64, 64, 1, 1]], [[8, 3, 224, 224], [64, 3, 7, 7]]
A100, V100, P100 = ("NVIDIA A100-SXM4-40GB", 8), ("Tesla V100-SXM2-32GB", 7), ("Tesla P100-PCIE-16GB", 6)
CUTLASS = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x5_nn_align4>(Params)"
TF32_CONVOLUTION = "cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4"
HALF_GEMM = "cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x4_tn_align8"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)"
SGEMM: tuple[str, Any, dict[str, Any]] = ("ampere_sgemm_128x64_nn", FLOAT, {"dims": EVEN})
CONVOLVES = {"op": "aten::cudnn_convolution"}


@pytest.mark.parametrize(
    ("device", "kernels", "reasons"),
    [
        (A100, [SGEMM], ["tf32_off"]),
        (V100, [("volta_sgemm_128x64_nn", FLOAT, {"dims": EVEN})], ["fp32_inputs"]),
        (P100, [("maxwell_sgemm_128x64_nn", FLOAT, {"dims": EVEN})], ["device_has_none"]),
        # Where other products run in TF32, it is on, and dimensions decide.
        (
            A100,
            [(CUTLASS, FLOAT, {"dims": EVEN}), ("ampere_sgemm_32x32_nn", FLOAT, {"dims": ODD}), SGEMM],
            ["dimensions", "library_choice"],
        ),
        # PyTorch allows TF32 for convolutions by default and for products not.
        (A100, [(TF32_CONVOLUTION, FLOAT, CONVOLVES), SGEMM], ["tf32_off"]),
        (A100, [(CUTLASS, FLOAT, CONVOLVES), SGEMM], ["tf32_off"]),  # 1 x 1
        (A100, [(CUTLASS, FLOAT, {"op": "aten::_cudnn_rnn"}), SGEMM], ["tf32_off"]),
        (
            A100,
            [("fmha_cutlassF_f32_aligned_64x64_rf_sm80", FLOAT, {"op": "aten::_efficient_attention_forward"}), SGEMM],
            ["tf32_off"],
        ),
        (A100, [(CUTLASS, FLOAT, {"op": "aten::bmm"}), SGEMM], ["library_choice"]),
        (A100, [(CUTLASS, FLOAT, {"op": "aten::_slow_conv2d_forward"}), SGEMM], ["library_choice"]),
        (A100, [(CUTLASS, FLOAT, {"op": "Torch-Compiled Region: 0/0"}), SGEMM], ["library_choice"]),
        # A convolution without TF32 beside one with it is the choice of the library.
        (
            A100,
            [(CUTLASS, FLOAT, CONVOLVES), ("ampere_sgemm_128x64_nn", FLOAT, {"dims": POINTWISE, **CONVOLVES})],
            ["library_choice"],
        ),
        (A100, [("ampere_hgemm_128x64_nn", HALF, {"dims": ODD})], ["dimensions"]),
        (A100, [("ampere_hgemm_128x64_nn", HALF, {"dims": EVEN})], ["library_choice"]),
        (A100, [("ampere_hgemm_128x64_nn", HALF, {})], ["shapes_not_recorded"]),
        # The channels of a convolution, and not its image, must divide.
        (V100, [("volta_fp16_scudnn_fp16_128x64_relu_interior_nn_v1", HALF, {"dims": POINTWISE})], ["library_choice"]),
        (V100, [("volta_fp16_scudnn_fp16_128x128_relu_interior_nn_v1", HALF, {"dims": STEM})], ["dimensions"]),
        # The most time comes first.
        (A100, [("volta_dgemm_64x64_nn", None, {}), SGEMM, SGEMM], ["tf32_off", "fp64_inputs"]),
        # These run on them, or are no products.
        (A100, [(HALF_GEMM, HALF, {}), (ELEMENTWISE, FLOAT, {}), ("gemv2T_kernel_val<int, float>", FLOAT, {})], []),
    ],
)
def test_why_products_run_without_them(
    device: tuple[str, int], kernels: list[tuple[str, Any, dict[str, Any]]], reasons: list[str]
) -> None:
    builder = Kernels()
    builder.gpu(device[0], computeMajor=device[1], computeMinor=0, numSms=80)
    for name, types, inputs in kernels:
        builder.run(name, types, **inputs)
    found = arithmetic(builder.build()).eligible_unused
    assert [each.reason for each in found] == reasons
    assert all(each.time_ns == 10_000 * each.kernels for each in found)
    assert all(each.operators in (("aten::mm",), ("aten::cudnn_convolution",)) for each in found)


def test_fp64_and_operators_that_autocast_keeps_in_fp32():
    builder = Kernels().gpu("NVIDIA A100", computeMajor=8).run("volta_dgemm_64x64_nn", ["double", "double"], dims=EVEN)
    builder.op("aten::cdist", builder.at + 90, 80)  # around the next operator
    builder.run("ampere_sgemm_128x64_nn", FLOAT, dims=EVEN)
    found = {each.reason: each.time_ns for each in arithmetic(builder.build()).eligible_unused}
    assert found == {"fp64_inputs": 10_000, "fp32_only_operator": 10_000}


@pytest.mark.parametrize(
    ("name", "major", "expected"),
    [
        ("NVIDIA H200", 9, True),
        ("NVIDIA GeForce GTX 1660 Ti", 7, False),
        ("Tesla P100-PCIE-16GB", 6, False),
        ("AMD Instinct MI300X", 9, True),
        ("AMD Radeon Graphics", 9, None),
        ("AMD Instinct MI50", 9, False),
        (None, None, None),
    ],
)
def test_which_devices_have_them(name, major, expected):
    assert has_tensor_cores(DeviceProperties(0, name=name, compute_major=major)) is expected


@pytest.mark.parametrize(
    ("devices", "ordinal", "name"),
    [("AB", 1, "B"), ("AB", 5, None), ("AA", 4, "A"), ("", 0, None)],  # an unknown one is of the only kind
)
def test_device_by_ordinal(devices: str, ordinal: int, name: str | None) -> None:
    builder = TraceBuilder().step(1, 0, 10)
    for place, device in enumerate(devices):
        builder.gpu(device, ordinal=place)
    assert device_properties(builder.build(), ordinal).name == name
