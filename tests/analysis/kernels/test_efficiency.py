import numpy as np
import pytest

from lightning_perf.analysis.kernels.efficiency import efficiency
from lightning_perf.analysis.kernels.kernel_table import kernels
from lightning_perf.report.sections.device import mfu_texts
from lightning_perf.trace.reader import read_trace
from tests.analysis.kernels.test_arithmetic import BF16, FLOAT, Kernels
from tests.support.trace_builder import TraceBuilder

SHAPES = [[1024, 1024], [1024, 1024]]
FLOPS = 2 * 1024**3


def a100(builder):
    return builder.gpu("NVIDIA A100-SXM4-40GB", computeMajor=8, numSms=108, totalGlobalMem=40 * 10**9)


def test_busy_sm_efficiency_and_occupancy():
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", numSms=100).step(1, 0, 100)
    builder.kernel("a", 0, 20, **{"blocks per SM": 4.0, "est. achieved occupancy %": 50})  # fills all
    builder.kernel("b", 10, 20, stream=9, **{"blocks per SM": 0.5, "est. achieved occupancy %": 25})  # overlaps by 10
    builder.kernel("c", 50, 10, grid=[25, 1, 1])  # a quarter of 100 multiprocessors, no occupancy
    (device,) = efficiency(builder.build()).devices
    assert device.busy == pytest.approx(0.40)
    assert device.sm_efficiency == pytest.approx((20 * 1 + 20 * 0.5 + 10 * 0.25) / 100)
    assert device.occupancy == pytest.approx((50 + 25) / 2 / 100)


def test_a_recorded_occupancy_of_zero_is_true_of_tiny_kernels_only():
    """As on an H200: cuBLAS's kernels have most of the shared memory, and one block per SM or a little less."""
    builder = TraceBuilder().gpu("NVIDIA H200", numSms=132).step(1, 0, 100)
    unknown = {"est. achieved occupancy %": 0, "block": [384, 1, 1]}
    builder.kernel("nvjet_full", 0, 10, **{"blocks per SM": 1.0}, **unknown)
    builder.kernel("nvjet_less", 20, 10, **{"blocks per SM": 0.97}, **unknown)
    builder.kernel("tiny", 40, 10, **{"blocks per SM": 0.008, "est. achieved occupancy %": 0, "block": [1024, 1, 1]})
    builder.kernel("copy", 60, 10, **{"blocks per SM": 100.0, "est. achieved occupancy %": 100, "block": [128, 1, 1]})
    trace = builder.build()
    assert {row.name: row.occupancy for row in kernels(trace).rows} == {
        "nvjet_full": None,
        "nvjet_less": None,
        "tiny": 0,
        "copy": 1,
    }
    assert efficiency(trace).devices[0].occupancy == pytest.approx(0.5)


def test_kernels_that_run_at_once_never_fill_more_than_all():
    builder = TraceBuilder().step(1, 0, 100)
    for stream in range(3):
        builder.kernel("a", 0, 100, stream=stream, **{"blocks per SM": 2.0})
    (device,) = efficiency(builder.build()).devices
    assert (device.busy, device.sm_efficiency) == (1, 1)


def test_copies_do_not_keep_a_device_busy():
    builder = TraceBuilder().step(1, 0, 100).memcpy("HtoD", 0, 90).kernel("a", 95, 5)
    (device,) = efficiency(builder.build()).devices
    assert device.busy == pytest.approx(0.05)
    assert device.sm_efficiency is None


def test_mfu_is_the_time_at_peak_over_wall_time():
    builder = a100(Kernels()).run("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x6_tn_align8", BF16, dims=SHAPES)
    value = efficiency(builder.build())
    assert value.flops == FLOPS
    assert value.flops_per_s == pytest.approx(FLOPS / 10e-3)
    assert value.mfu == pytest.approx(FLOPS / 312e12 / 10e-3)
    assert value.mfu_missing is None


def test_each_arithmetic_is_held_to_its_own_peak():
    builder = a100(Kernels()).run("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x6_tn_align8", BF16, dims=SHAPES)
    value = efficiency(builder.run("ampere_sgemm_128x64_nn", FLOAT, dims=SHAPES).build())
    assert {rate.name: rate.flops_per_s for rate in value.rates} == pytest.approx(
        dict.fromkeys(("fp32", "bf16"), FLOPS / 10e-6)
    )
    assert value.mfu == pytest.approx((FLOPS / 312e12 + FLOPS / 19.5e12) / 10e-3)


def test_an_operator_inside_another_does_not_count_again():
    builder = a100(TraceBuilder()).step(1, 0, 1000)
    builder.op("aten::linear", 10, 50, types=BF16, dims=[[4, 256, 1024], [1024, 1024], [1024]])
    builder.op("aten::addmm", 15, 40, types=BF16, dims=[[1024], [1024, 1024], [1024, 1024]])
    builder.launch("nvjet_tst_128x256_64x4", call_us=20, call_duration_us=5, start_us=40, duration_us=10)
    assert efficiency(builder.build()).flops == FLOPS


def conv_step(kernels_in_backward):
    """A convolution whose backward launches one or two product kernels."""
    builder = a100(TraceBuilder()).step(1, 0, 1000)
    data, weight, out = [8, 64, 56, 56], [128, 64, 3, 3], [8, 128, 28, 28]
    builder.op("aten::conv2d", 0, 60, types=FLOAT, dims=[data, weight, [128]])
    builder.op("aten::cudnn_convolution", 5, 50, types=FLOAT, dims=[data, weight])
    builder.launch("ampere_scudnn_128x64_relu", call_us=10, call_duration_us=5, start_us=20, duration_us=10)
    builder.op("aten::convolution_backward", 100, 100, types=FLOAT, dims=[out, data, weight])
    for i in range(kernels_in_backward):
        builder.launch(
            "ampere_scudnn_128x64_b", call_us=110 + 20 * i, call_duration_us=5, start_us=150 + 20 * i, duration_us=9
        )
    return builder, 2 * 8 * 128 * 28 * 28 * 64 * 9


@pytest.mark.parametrize(("kernels", "passes"), [(2, 3), (1, 2)])
def test_a_forward_convolution_learns_its_output_from_its_backward(kernels, passes):
    """The backward of a first layer has no gradient of the data: one kernel instead of two."""
    builder, flops = conv_step(kernels)
    value = efficiency(builder.build())
    assert value.flops == passes * flops
    assert value.flops_coverage == 1


def test_recorded_flops_stand_in_where_shapes_do_not_tell():
    builder = a100(TraceBuilder()).step(1, 0, 1000)
    builder.op("aten::conv2d", 0, 60, types=FLOAT, dims=[[8, 64, 56, 56], [128, 64, 3, 3]], flops=12345)
    builder.launch("ampere_scudnn_128x64_relu", call_us=10, call_duration_us=5, start_us=20, duration_us=10)
    assert efficiency(builder.build()).flops == 12345


@pytest.mark.parametrize("size", [2**40, 10**18, 10**60])
@pytest.mark.parametrize("operator", ["aten::mm", "aten::linear", "aten::convolution_backward"])
def test_shapes_that_no_device_could_work_through_are_not_counted(operator, size):
    dims = [[size, size, 3, 3]] * 3 if "conv" in operator else [[size, size], [size, size]]
    builder = a100(TraceBuilder()).step(1, 0, 1000)
    for start in (0, 100, 200):
        builder.op(operator, start, 60, types=FLOAT, dims=dims, flops=min(size, 2**62))
        call = {"call_us": start + 5, "call_duration_us": 5, "start_us": start + 20, "duration_us": 9}
        builder.launch("ampere_sgemm_128x64_nn", **call)
    builder.op("aten::mm", 400, 60, types=FLOAT, dims=SHAPES)
    found = efficiency(builder.build())
    recorded = 3 * size if size <= 10**18 else 0  # what the recording itself says stands in, as far as it is plausible
    assert found.flops == FLOPS + recorded


def test_a_total_beyond_64_bits_is_exact():
    builder = a100(TraceBuilder()).step(1, 0, 10_000)
    for start in range(0, 2000, 100):
        builder.op("aten::mm", start, 60, types=FLOAT, dims=[], flops=10**18)
    assert efficiency(builder.kernel("ampere_sgemm_128x64_nn", 0, 10).build()).flops == 20 * 10**18


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda b: b.op("aten::mm", 0, 10, types=FLOAT, dims=SHAPES), "no kernels"),
        (lambda b: a100(b).kernel("ampere_sgemm_128x64_nn", 0, 10), "record_shapes=True"),
        (lambda b: Kernels().run("ampere_sgemm_128x64_nn", FLOAT, dims=SHAPES), "no peak rate is known for an unnamed"),
        (
            lambda b: a100(Kernels()).op("aten::mm", 0, 9, dims=SHAPES).run("ampere_sgemm_b", FLOAT),
            "FLOPs of none of the matrix products on the device",
        ),
        (
            lambda b: Kernels().run("nvjet_tst_128x256_64x4", BF16, dims=SHAPES).gpu("Tesla V100-SXM2-32GB"),
            "known for bf16",
        ),
    ],
)
def test_why_there_is_no_mfu(build, reason):
    value = efficiency(build(TraceBuilder().step(1, 0, 1000)).build())
    assert value.mfu is None
    assert reason in value.mfu_missing


@pytest.mark.parametrize(("tiny_us", "rated"), [(9, {"bf16"}), (11, {"bf16", "fp32"})])
def test_an_arithmetic_of_a_few_tiny_products_has_no_rate(tiny_us, rated):
    builder = a100(TraceBuilder()).step(1, 0, 10_000)
    for at, kernel, types, length in (
        (0, "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x6_tn_align8", BF16, 1000 - tiny_us),
        (2000, "ampere_sgemm_128x64_nn", FLOAT, tiny_us),
    ):
        builder.op("aten::mm", at, 60, types=types, dims=SHAPES)
        builder.launch(kernel, call_us=at + 10, call_duration_us=5, start_us=at + 20, duration_us=length)
    assert {rate.name for rate in efficiency(builder.build()).rates} == rated


def test_an_mfu_with_unknown_products_is_a_lower_bound():
    value = efficiency(a100(Kernels()).run("ampere_sgemm_a", FLOAT, dims=SHAPES).run("ampere_sgemm_b", FLOAT).build())
    assert value.mfu == pytest.approx(FLOPS / 19.5e12 / 10e-3)
    assert mfu_texts(value) == ["at least 1.1 %", "FLOPs known for 50.0 % of product time"]


def attention_step(**inputs):
    builder = a100(TraceBuilder()).step(1, 0, 10_000)
    name, shape = "aten::_scaled_dot_product_flash_attention", [2, 8, 1024, 64]
    builder.op(name, 0, 60, types=BF16, dims=[shape] * 3, **inputs)
    kernel = "pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, cutlass::bfloat16_t>>"
    return builder.launch(kernel, call_us=10, call_duration_us=5, start_us=20, duration_us=100)


@pytest.mark.parametrize(("causal", "least", "most"), [("True", 1, 1), ("False", 2, 2), (None, 1, 2)])
def test_causal_attention_has_half_the_flops(causal, least, most):
    one = 2 * 2 * 8 * 1024**2 * 64
    value = efficiency(attention_step(**({"Concrete Inputs": ["", "", "", "0.", causal]} if causal else {})).build())
    assert value.flops == least * one
    assert (value.mfu, value.mfu_high) == pytest.approx((least * one / 312e12 / 10e-3, most * one / 312e12 / 10e-3))
    (rate,) = value.rates
    assert (rate.name, rate.flops_per_s) == ("bf16", least * one / 100e-6)
    assert rate.peak_share == pytest.approx(least * one / 100e-6 / 312e12)
    assert ("mask or lengths of attention not recorded" in mfu_texts(value)) == (least < most)


def test_repeated_forward_work_counts_as_hfu_only():
    builder = a100(Kernels()).run("ampere_sgemm_a", FLOAT, dims=SHAPES).run("ampere_sgemm_b", FLOAT, dims=SHAPES)
    trace = builder.build()
    repeated = np.arange(len(trace.operators)) == 1
    value = efficiency(trace, repeated)
    assert (value.mfu, value.hfu) == pytest.approx((FLOPS / 19.5e12 / 10e-3, 2 * FLOPS / 19.5e12 / 10e-3))
    assert mfu_texts(value) == ["1.1 %", "HFU 2.2 % with repeated forward work"]


def test_a_kernel_against_the_peak():
    builder = a100(Kernels()).run("ampere_sgemm_a", FLOAT, dims=SHAPES).run("ampere_sgemm_b", FLOAT)
    rows = {row.name: row for row in kernels(builder.build()).rows}
    time_s = rows["ampere_sgemm_a"].total_ns / 1e9
    assert rows["ampere_sgemm_a"].peak_share == pytest.approx(FLOPS / time_s / 19.5e12)
    assert rows["ampere_sgemm_b"].peak_share is None


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "name", "flops", "share"),
    [
        # Counted from the JSON by a separate script. ViT-base/16 for 4 pictures is 4 × 17.56 GMACs.
        ("tracelens/h100/Falconsai*", "bf16", 140_509_200_384, 0.1485),
        ("tracelens/h100/gaunernst*", "bf16", 8_192_059_392, 0.0352),
        ("tracelens/mi300/gaunernst*", "bf16", 8_192_059_392, 0.0218),
        ("tracelens/torch_compile_triton/*", "bf16", 5_497_558_138_880, 0.3590),
        ("tracelens/mi300/ddp_resnet18_no_pool/*", "bf16", 27_259_935_129_600, 0.2187),
        ("tracelens/b200/*", "bf16", 235_838_453_760, 0.1336),
    ],
)
def test_rates_of_real_recordings(file, name, flops, share, corpus):
    (path,) = (corpus / "traces").glob(file)
    found = efficiency(read_trace(path))
    (rate,) = found.rates
    assert (rate.name, found.flops) == (name, flops)
    assert rate.peak_share == pytest.approx(share, abs=5e-5)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "macs", "first_convolution", "batch", "steps"),
    [
        # MACs a picture as torchvision publishes them for 224 × 224; the first convolution has no gradient of its data.
        (
            "kineto/resnet50_num_workers_4/worker0.1623212756351.234cf25.pt.trace.json.gz",
            4_089_184_256,
            118_013_952,
            32,
            6,
        ),
        ("tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.941dea2.json.gz", 1_814_073_344, 118_013_952, 512, 5),
    ],
)
def test_training_a_known_network_counts_its_published_flops(file, macs, first_convolution, batch, steps, corpus):
    (path,) = (corpus / "traces").rglob(file)
    value = efficiency(read_trace(path))
    assert value.flops == 2 * batch * steps * (3 * macs - first_convolution)
    assert value.flops_coverage == 1
    assert 0 < value.mfu < 1


@pytest.mark.corpus
def test_device_use_equals_what_the_former_plugin_published_for_its_sample(corpus):
    """The TensorBoard plugin's own front-end test data for this recording: 54.68 % and 49.13 %."""
    (path,) = (corpus / "traces").rglob("worker0.1623143089861.*.pt.trace.json.gz")
    (device,) = efficiency(read_trace(path)).devices
    assert round(100 * device.sm_efficiency, 2) == 54.68
    assert round(100 * device.occupancy, 2) == 49.13
