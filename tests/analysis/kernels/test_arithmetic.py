import pytest

from lightning_perf.analysis.kernels.arithmetic import ARITHMETICS, arithmetic
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
