from typing import Any

import pytest

from lightning_perf.analysis.kernels.arithmetic import ARITHMETICS, arithmetic, device_properties, has_tensor_cores
from lightning_perf.trace.description import DeviceProperties
from tests.support.trace_builder import TraceBuilder

FLOAT, HALF, BF16 = ["float", "float"], ["c10::Half", "c10::Half"], ["c10::BFloat16", "c10::BFloat16"]


class Kernels(TraceBuilder):
    """A step whose operators each launch one kernel of 10 µs."""

    def __init__(self):
        super().__init__()
        self.step(1, 0, 10_000)
        self.at = 0

    def run(self, kernel, types=None, *, op="aten::mm", dims=None):
        self.at += 100
        self.op(op, self.at, 50, types=types, dims=dims)
        return self.launch(kernel, call_us=self.at + 5, call_duration_us=5, start_us=self.at + 20, duration_us=10)


def times(value):
    return {row.name: row.time_ns for row in value.rows if row.time_ns}


@pytest.mark.parametrize(
    ("kernel", "types", "expected", "evidence"),
    [
        ("ampere_sgemm_128x64_nn", FLOAT, "fp32", "operator"),
        ("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", FLOAT, "tf32", "name"),  # the name tells what ran
        ("some_tensorop_kernel_hmma", FLOAT, "tf32", "operator"),  # Tensor Cores take no FP32
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", BF16, "bf16", "operator"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", None, "bf16", "name"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", BF16, "bf16", "operator"),
        ("triton_poi_fused_add_0", HALF, "fp16", "operator"),
        ("triton_poi_fused_add_0", ["Scalar"], "unknown", None),
        ("triton_poi_fused_add_0", None, "unknown", None),
        ("void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)", BF16, "bf16", "operator"),
        ("void cub::DeviceRadixSortKernel<long>(long*)", ["long int"], "integer", "operator"),
        ("void cub::DeviceRadixSortKernel<long>(long*)", None, "integer", "name"),
        ("mystery", ["signed char", "signed char"], "int8", "operator"),
        ("mystery", ["c10::Float8_e4m3fn", "c10::Float8_e4m3fn"], "fp8", "operator"),
        ("mystery", ["bool", "double"], "fp64", "operator"),
    ],
)
def test_what_operator_and_name_tell(kernel, types, expected, evidence):
    value = arithmetic(Kernels().run(kernel, types).build())
    row = value.row(expected)
    assert times(value) == {expected: 10_000}
    assert (row.by_operator_ns, row.by_name_ns) == (10_000 * (evidence == "operator"), 10_000 * (evidence == "name"))


def test_matrix_cores_of_amd_do_take_fp32():
    builder = Kernels().run("Cijk_Alik_Bljk_SB_MT64x64x16_MI32x32x2x1_SN", FLOAT)
    value = arithmetic(builder.build())
    assert times(value) == {"fp32": 10_000}
    assert value.tensor_core_ns == 10_000


def test_tensor_core_share_counts_tf32_and_knows_what_it_does_not_know():
    builder = Kernels().run("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", FLOAT)
    builder.run("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", HALF).run("ampere_sgemm_128x64_nn", FLOAT)
    value = arithmetic(builder.run("triton_tem_fused_mm_3", HALF).build())
    assert value.tensor_core_ns == 20_000
    assert value.tensor_core_share == pytest.approx(0.5)
    assert value.tensor_core_unknown_ns == 10_000
    assert value.compute_ns == 40_000


def test_collectives_and_copies_are_no_arithmetic():
    builder = Kernels().run("ncclDevKernel_AllReduce_Sum_f32_RING_LL", FLOAT).memcpy("HtoD", 5000, 10)
    value = arithmetic(builder.build())
    assert value.compute_ns == 0
    assert value.tensor_core_share is None


def test_kernels_outside_the_steps_do_not_count():
    builder = Kernels().run("ampere_sgemm_128x64_nn", FLOAT).kernel("ampere_sgemm_128x64_nn", 20_000, 10)
    assert arithmetic(builder.build()).compute_ns == 10_000


@pytest.mark.corpus
def test_real_traces(trace, row):
    value = arithmetic(trace)
    assert [r.name for r in value.rows] == list(ARITHMETICS)
    assert sum(r.time_ns for r in value.rows) == value.compute_ns
    for r in value.rows:
        assert r.by_operator_ns + r.by_name_ns == (0 if r.name == "unknown" else r.time_ns)
    if value.compute_ns:
        assert value.row("unknown").share < 0.02
    known = {"tracelens/h100": "bf16", "tracelens/mi300": "bf16", "kineto/": "fp32", "triton/trace": "bf16"}
    for where, name in known.items():
        if where in row["file"]:
            assert value.row(name).share > 0.97


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
