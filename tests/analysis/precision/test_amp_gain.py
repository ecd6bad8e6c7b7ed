from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.precision.amp_gain import AmpGain, AmpPart, autocast_tax, check_prediction
from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 40 * 2**30, "computeMajor": 8, "computeMinor": 0}
V100 = {**A100, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7}
UNKNOWN = {**A100, "name": "Some GPU", "computeMinor": 6}
A100_80GB = {**A100, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 80 * 2**30}
H100 = {**A100_80GB, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}
V100_32GB = {**V100, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 32 * 2**30}
STEP_US = 1000


Call = tuple[str, str, float, Any]


def recording(device: dict[str, object], *kernels: Call, kind: str = "float", step_us: float = STEP_US) -> Trace:
    """One step with kernels back to back, each of (operator, kernel, µs, dims); the host waits at the end."""
    builder = TraceBuilder(deviceProperties=[device]).step(1, 0, step_us)
    start = 50.0
    for number, (operator, kernel, duration, dims) in enumerate(kernels):
        if operator.startswith("Optimizer"):
            builder.annotation(operator, 10 + 5 * number, 5)
            operator = "aten::add_"
        builder.op(operator, 10 + 5 * number, 4, types=[kind] * len(dims), dims=dims)
        builder.launch(kernel, call_us=11 + 5 * number, call_duration_us=1, start_us=start, duration_us=duration)
        start += duration
    issued = 10 + 5 * len(kernels)
    return builder.runtime("cudaDeviceSynchronize", issued, step_us - issued).build()


def filled(device: dict[str, object], *calls: Call) -> Trace:
    """One step that its kernels fill."""
    return recording(device, *calls, step_us=sum(call[2] for call in calls) + 100)


def gain_of(trace: Trace) -> AmpGain:
    return known(analyze_rank(trace).amp_gain)


def parts_of(trace: Trace) -> dict[str, AmpPart]:
    return {part.name: part for part in gain_of(trace).parts}


MM = ("aten::mm", "volta_sgemm_128x64_nn", 400, [[64, 64], [64, 64]])
RELU = ("aten::relu", "vectorized_elementwise_kernel", 200, [[64, 64]])
SOFTMAX = ("aten::_softmax", "softmax_warp_forward", 100, [[64, 64]])
STEP = ("Optimizer.step#SGD.step", "multi_tensor_apply_kernel", 100, [[64, 64]])


def test_kernels_fall_into_their_parts():
    trace = recording(UNKNOWN, MM, RELU, SOFTMAX, STEP)
    gain, parts = gain_of(trace), parts_of(trace)
    assert {name: (part.kernels, part.time_ns) for name, part in parts.items()} == {
        "products": (1, 400_000),
        "following": (1, 200_000),
        "fixed": (2, 200_000),
    }
    assert (gain.device, gain.casts_ns, gain.steps, gain.step_ns) == (None, 0.0, 1, 1_000_000)


def test_a_closure_that_the_optimizer_runs_is_predicted_like_any_training():
    """Under Lightning's automatic optimization forward and backward run inside ``optimizer.step``."""
    plain = recording(UNKNOWN, MM, RELU)
    builder = TraceBuilder(deviceProperties=[UNKNOWN]).step(1, 0, STEP_US).annotation("Optimizer.step#SGD.step", 5, 95)
    builder.annotation("perf::forward", 8, 13).annotation("perf::optimizer", 30, 70)
    for at, (operator, kernel, duration, dims), start in ((10, MM, 100), (15, RELU, 500), (40, STEP, 700)):
        name = "aten::add_" if operator.startswith("Optimizer") else operator
        builder.op(name, at, 4, types=["float"] * len(dims), dims=dims)
        builder.launch(kernel, call_us=at + 1, call_duration_us=1, start_us=start, duration_us=duration)
    trace = builder.build()
    gain, parts = gain_of(trace), parts_of(trace)
    expected = parts_of(plain)
    assert {name: parts[name] for name in expected} == expected
    assert set(parts) - set(expected) == {"fixed"}
    assert parts["fixed"].time_ns == 100_000
    assert gain.most_saving_ns > 0


def test_saving_by_hand_without_known_peaks():
    trace = recording(UNKNOWN, MM, RELU, SOFTMAX)
    gain, parts = gain_of(trace), parts_of(trace)
    assert (parts["products"].fastest_ns, parts["products"].slowest_ns) == (100_000, 200_000)
    assert (parts["following"].fastest_ns, parts["following"].slowest_ns) == (100_000, 200_000)
    analysis = analyze_rank(recording(UNKNOWN, MM, RELU, SOFTMAX))
    exposed = 1 - analysis.launches.launch_bound.share
    assert gain.least_saving_ns == pytest.approx(200_000 * exposed)
    assert gain.most_saving_ns == pytest.approx(400_000 * exposed)
    assert gain.speedup == pytest.approx((1e6 / (1e6 - 200e3 * exposed), 1e6 / (1e6 - 400e3 * exposed)))


@pytest.mark.parametrize(
    ("device", "factor"),
    [
        (A100, 1.1 * 312 / 19.5),
        (V100, 1.1 * 125 / 15.7),
        (UNKNOWN, 4.0),
        ({**A100, "name": "Quadro GP100"}, 1.1 * 20.7 / 10.3),
    ],
)
def test_products_are_bound_by_the_peaks_of_the_device(device, factor):
    parts = parts_of(recording(device, MM))
    assert parts["products"].fastest_ns == pytest.approx(400_000 / factor)


def test_products_on_tensor_cores_gain_less():
    tf32 = ("aten::mm", "ampere_s1688gemm_128x64", 400, [[64, 64], [64, 64]])
    part = parts_of(recording(A100, tf32))["products on Tensor Cores"]
    assert (part.fastest_ns, part.slowest_ns) == (200_000, pytest.approx(400_000 / 1.2))


def test_attention_in_fp32_is_made_of_three_products_in_tf32():
    attention = "aten::_efficient_attention_forward"
    kernel = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)"
    outer = "aten::_scaled_dot_product_efficient_attention"
    builder = TraceBuilder(deviceProperties=[A100]).step(1, 0, STEP_US).op(outer, 0, 50)
    builder.op(attention, 5, 40, types=["float"] * 3, dims=[[1, 8, 4, 8]] * 3)
    builder.launch(kernel, call_us=10, call_duration_us=5, start_us=100, duration_us=600)
    parts = parts_of(builder.build())
    part = parts["products on Tensor Cores"]
    assert (part.fastest_ns, part.slowest_ns) == (pytest.approx(600_000 / 6), pytest.approx(600_000 / 1.5))


def test_memory_bounds_what_reads_much():
    # 200 MB of operands at 1555 GB/s take 257 µs in FP32 and 129 µs in 16 bits: no factor of 8.
    elements = 50_000_000
    wide = ("aten::mm", "sgemm", 260, [[1, elements // 2], [elements // 2, 1]])
    parts = parts_of(recording(A100, wide))
    products = parts["products"]
    assert products.fastest_ns == pytest.approx(2 * elements / 1555e9 * 1e9)
    assert products.slowest_ns == pytest.approx(130_000, rel=0.02)


def test_casting_the_weights_is_counted_against_it():
    linear = ("aten::addmm", "sgemm", 300, [[4096], [32, 4096], [4096, 4096]])
    gain = gain_of(recording(A100, linear))
    assert gain.casts_ns == pytest.approx(12 * 4096 * 4096 / 1555)
    assert gain.least_saving_ns < gain.most_saving_ns


def test_device_that_waits_for_the_host_gains_nothing():
    builder = TraceBuilder(deviceProperties=[UNKNOWN]).step(1, 0, STEP_US)
    # The host is inside operators throughout, and kernels are a tenth of each.
    for n in range(10):
        builder.op("aten::mm", 100 * n, 99, types=["float"], dims=[[8, 8], [8, 8]])
        builder.launch("sgemm", call_us=100 * n + 80, call_duration_us=5, start_us=100 * n + 88, duration_us=10)
    gain = gain_of(builder.build())
    assert gain.most_saving_ns <= 10_000


def test_nothing_to_predict():
    in_16_bits = ("aten::mm", "ampere_fp16_s16816gemm", 400, [[64, 64], [64, 64]])
    assert analyze_rank(recording(A100, in_16_bits, kind="c10::Half")).amp_gain is None
    assert analyze_rank(TraceBuilder().step(1, 0, 100).op("aten::mm", 10, 20).build()).amp_gain is None


def test_check_of_a_prediction():
    gain = AmpGain("A100 40GB", 5, 100e6, (), 0.0, 20e6, 60e6)
    assert not check_prediction(gain, 90e6).held
    assert not check_prediction(gain, 30e6).held
    with pytest.raises(ValueError, match="must be above 0"):
        check_prediction(gain, 0)


def of_compute(gain: AmpGain) -> tuple[float, float]:
    """Least and most speed-up of the kernels alone."""
    total = sum(part.time_ns for part in gain.parts)
    slowest, fastest = (sum(getattr(part, end) for part in gain.parts) for end in ("slowest_ns", "fastest_ns"))
    return total / slowest, total / fastest


H100_PRODUCTS: dict[str, tuple[str, float, float, str]] = {
    "FP16, Nsight profile": ("sm80_xmma_gemm_f32f32_simt_sgemm", 52.1, 762.9, "products"),
    "BF16, PyTorch 2.11": ("sm80_xmma_gemm_f32f32_simt_sgemm", 52.1, 798.0, "products"),
    "FP16 from TF32": ("nvjet_sss_tf32_128x256_TNT", 416.6, 762.9, "products on Tensor Cores"),
}
"""Kernels of 8192³ products, with their rates and those in 16 bits, in TFLOP/s."""


@pytest.mark.parametrize("measurement", H100_PRODUCTS)
def test_products_on_an_h100(measurement: str) -> None:
    kernel, before, after, name = H100_PRODUCTS[measurement]
    call = ("aten::mm", kernel, 2 * 8192**3 / (before * 1e12) * 1e6, [[8192, 8192]] * 2)
    (part,) = gain_of(filled(H100, call)).parts
    assert part.name == name
    assert part.time_ns / part.slowest_ns <= after / before <= part.time_ns / part.fastest_ns
    assert part.time_ns / part.fastest_ns <= 1.2 * after / before  # and no wider than it has to be


# A recorded step of ResNet-50 on a V100_32GB spends so much on convolutions and products, and on what follows them
# (pytorch/kineto, tb_plugin/samples/resnet50_num_workers_4).
PRODUCTS, FOLLOWING, REST = 0.678, 0.306, 0.016


def resnet50(device: dict[str, object], products_us: float, following_us: float, rest_us: float, tf32: bool) -> Trace:
    convolution = (
        "cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4" if tf32 else "volta_scudnn_128x64"
    )
    return filled(
        device,
        ("aten::cudnn_convolution", convolution, products_us, [[32, 64, 56, 56], [64, 64, 3, 3]]),
        ("aten::cudnn_batch_norm", "bn_fw_tr_1C11_kernel_NCHW", following_us, [[32, 64, 56, 56]]),
        ("aten::_foreach_add_", "multi_tensor_apply_kernel", rest_us, [[64]]),
    )


def step_parts_us(images_per_s: float) -> tuple[float, float, float]:
    """Return the times of a V100's step of 32 images in products, in what follows them, and in the rest."""
    step_us = 32 / images_per_s * 1e6
    return PRODUCTS * step_us, FOLLOWING * step_us, REST * step_us


@pytest.mark.parametrize(("fp32", "mixed"), [(367, 1200), (356, 1156)], ids=["16 GB", "32 GB"])
def test_resnet50_from_fp32_on_a_v100(fp32: float, mixed: float) -> None:
    """NVIDIA publishes 3.26 and 3.24 times (DeepLearningExamples, resnet50v1.5, NGC 21.03), in images per second."""
    low, high = gain_of(resnet50(V100_32GB, *step_parts_us(fp32), tf32=False)).speedup
    assert low <= mixed / fp32 <= high


@pytest.mark.corpus
@pytest.mark.parametrize("workers", ["0/worker0.1623143089861.769c3eb", "4/worker0.1623212756351.234cf25"])
def test_recorded_resnet50_on_a_v100(corpus: Path, workers: str) -> None:
    gain = gain_of(read_trace(corpus / "traces" / "kineto" / f"resnet50_num_workers_{workers}.pt.trace.json.gz"))
    low, high = of_compute(gain)
    assert low <= 3.24 <= 3.26 <= high


def test_resnet50_from_tf32_on_an_a100() -> None:
    """NVIDIA publishes 938 images per second in TF32 and 2470 in mixed precision with channels last, 2.63 times."""
    # What moves data takes the A100 80GB as much less as its memory is faster: 2039 against 900 GB/s.
    following_us, rest_us = (time_us * 900 / 2039 for time_us in step_parts_us(356)[1:])
    products_us = 32 / 938 * 1e6 - following_us - rest_us
    low, high = gain_of(resnet50(A100_80GB, products_us, following_us, rest_us, tf32=True)).speedup
    assert low <= 2470 / 938 <= high


CONVOLUTION = [[8, 64, 32, 32], [64, 64, 3, 3]]
DEPTHWISE = [[8, 64, 32, 32], [64, 1, 3, 3]]


MEMORY_BOUND: list[tuple[str, str, Any]] = [
    ("aten::cudnn_convolution", "void cudnn::cnn::conv2d_grouped_direct_kernel<float, float>", DEPTHWISE),
    ("aten::_convolution", "void at::native::conv_depthwise2d_forward_kernel<3, float, int>", DEPTHWISE),
    ("aten::convolution_backward", "void cudnn::cnn::dgrad2d_grouped_direct", [DEPTHWISE[0], *DEPTHWISE]),
    ("aten::cudnn_convolution", "void xmma_cudnn::implicit_gemm_indexed_tf32_kernel", DEPTHWISE),
    ("aten::mm", "void cublasLt::splitKreduce_kernel<32, 16, int, float>", [[64, 64], [64, 64]]),
    ("aten::mm", "void gemv2T_kernel_val<int, int, float, float, float>", [[64, 64], [64, 1]]),
]


@pytest.mark.parametrize(("operator", "kernel", "dims"), MEMORY_BOUND)
def test_what_memory_bounds_is_not_promised_twice_the_speed(operator: str, kernel: str, dims: Any) -> None:
    plain = ("aten::mm", "ampere_sgemm_128x64_nn", 100, [[64, 64]] * 2)
    parts = parts_of(filled(A100_80GB, (operator, kernel, 1000, dims), plain))
    assert parts["products"].time_ns == 100_000  # the plain product alone
    moved = next(part for part in parts.values() if part.time_ns == 1_000_000)
    assert (moved.slowest_ns, moved.fastest_ns) == (1_000_000, pytest.approx(500_000, rel=0.02))


def test_changes_of_layout_may_go_away() -> None:
    kernel = "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float>"
    plain = ("aten::mm", "ampere_sgemm_128x64_nn", 100, [[64, 64]] * 2)
    moved = parts_of(filled(A100_80GB, ("aten::cudnn_convolution", kernel, 1000, CONVOLUTION), plain))["following"]
    # At best, the convolution still reads its data and its weight, in 16 bits at 2039 GB/s.
    read_ns = 2 * (8 * 64 * 32 * 32 + 64 * 64 * 3 * 3) / 2039
    assert (moved.slowest_ns, moved.fastest_ns) == (1_000_000, pytest.approx(read_ns, rel=0.01))


def test_casts_around_what_autocast_keeps_in_fp32_are_charged() -> None:
    rows = [8192, 4096]
    product = ("aten::mm", "ampere_sgemm_128x64_nn", 3000, [[64, 64], [64, 64]])
    norm = ("aten::native_layer_norm", "vectorized_layer_norm_kernel", 200, [rows, [4096], [4096]])
    backward = ("aten::native_layer_norm_backward", "layer_norm_grad_input_kernel", 300, [rows, rows])
    without, with_norm = gain_of(filled(A100_80GB, product)), gain_of(filled(A100_80GB, product, norm, backward))
    # 16 bits are read and 32 written before, 32 read and 16 written after; so in the backward pass.
    expected_ns = 2 * (2 + 4 + 4 + 2) * 8192 * 4096 / 2039
    assert (without.casts_ns, with_norm.casts_ns) == (0.0, pytest.approx(expected_ns))
    assert without.least_saving_ns - with_norm.least_saving_ns == pytest.approx(expected_ns, rel=0.05)
    assert with_norm.most_saving_ns == pytest.approx(without.most_saving_ns, rel=0.05)


def test_softmax_is_cast_too() -> None:
    scores = [8, 16, 512, 512]
    product = ("aten::bmm", "ampere_sgemm_128x64_nn", 3000, [[64, 64, 64]] * 2)
    softmax = ("aten::_softmax", "cunn_SoftMaxForward", 200, [scores])
    assert gain_of(filled(A100_80GB, product, softmax)).casts_ns == pytest.approx(12 * 8 * 16 * 512 * 512 / 2039)


UNLISTED: dict[str, tuple[int, str]] = {
    "NVIDIA H100 80GB HBM3 MIG 3g.40gb": (9, "NVIDIA H100 80GB HBM3"),
    "NVIDIA A100_80GB-SXM4-80GB MIG 3g.40gb": (8, "NVIDIA A100_80GB-SXM4-80GB"),
}
"""Slices of devices, with their compute capability and the whole device."""


@pytest.mark.parametrize("name", UNLISTED)
def test_a_slice_of_a_device_is_promised_what_the_device_is(name: str) -> None:
    major, listed = UNLISTED[name]
    properties = {**A100_80GB, "computeMajor": major}
    call = ("aten::mm", "ampere_sgemm_128x64_nn", 3000.0, [[512, 512], [512, 512]])
    part, whole = (parts_of(filled({**properties, "name": gpu}, call))["products"].fastest_ns for gpu in (name, listed))
    assert part == pytest.approx(whole, rel=0.01)


def test_an_unlisted_device_of_amd_is_promised_no_more_than_before() -> None:
    device = {**A100_80GB, "name": "AMD Radeon Graphics", "computeMajor": 9}
    call = ("aten::mm", "Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1", 3000.0, [[512, 512], [512, 512]])
    assert parts_of(filled(device, call))["products"].fastest_ns == pytest.approx(3_000_000 / 4)


TO_BF16, TO_FLOAT = ["c10::BFloat16", "float", "Scalar"], ["float", "c10::BFloat16", "Scalar"]
AUTOGRAD = 2000


class Casts(TraceBuilder):
    """A step of casts, each a copy of 5 µs on the host with a kernel of 3 µs."""

    def __init__(self):
        super().__init__()
        self.step(1, 0, 10_000)
        self.at = 0

    def cast(self, types, shape, *, thread=1000, kernel=True):
        self.at += 20
        self.op("aten::to", self.at, 10, types=[types[1], "Scalar"], dims=[shape, []], thread=thread)
        self.op("aten::_to_copy", self.at + 1, 8, types=[types[1], "Scalar"], dims=[shape, []], thread=thread)
        self.op("aten::copy_", self.at + 2, 5, types=types, dims=[shape, shape, []], thread=thread)
        if kernel:
            self.launch(
                "cast", call_us=self.at + 3, call_duration_us=1, start_us=self.at + 5, duration_us=3, thread=thread
            )
        return self

    def accumulate(self, shape):
        self.at += 20
        node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        self.op(node, self.at, 8, thread=AUTOGRAD)
        return self.op(
            "torch::autograd::AccumulateGrad", self.at + 1, 5, types=["float"], dims=[shape], thread=AUTOGRAD
        )


def test_casts_by_type_with_the_time_of_the_device():
    builder = Casts().cast(TO_BF16, [64, 64]).cast(TO_BF16, [8, 64]).cast(TO_FLOAT, [8, 10])
    value = autocast_tax(builder.kernel("gemm", 5000, 91).build())
    assert [(c.source, c.target, c.count, c.time_ns) for c in value.casts] == [
        ("fp32", "bf16", 2, 6000),
        ("bf16", "fp32", 1, 3000),
    ]
    assert (value.count, value.time_ns, value.on_device) == (3, 9000, True)
    assert value.share == pytest.approx(9 / 100)


def test_without_a_device_casts_cost_host_time():
    value = autocast_tax(Casts().cast(TO_BF16, [64, 64], kernel=False).build())
    assert (value.time_ns, value.on_device) == (5000, False)
    assert value.share == pytest.approx(5 / 10_000)


@pytest.mark.parametrize(
    "types", [["float", "float"], ["float", "long int"], ["c10::BFloat16", "Scalar"], ["float"], ["", ""], []]
)
def test_copies_that_are_no_casts_of_floats(types):
    builder = Casts().cast([*types, "", ""], [4]) if len(types) < 2 else Casts().cast(types, [4])
    assert autocast_tax(builder.build()).count == 0


def test_a_weight_cast_at_every_use_is_repeated():
    """One layer used three times with autocast's cache off: two of the three casts need not be."""
    builder = Casts()
    for _ in range(3):
        builder.cast(TO_BF16, [64, 32])
    builder.cast(TO_BF16, [8, 32])  # an activation: no gradient of this shape is accumulated
    value = autocast_tax(builder.accumulate([64, 32]).build())
    assert (value.repeated_weight_casts, value.repeated_weight_ns) == (2, 6000)


def test_weights_cast_once_each_are_not_repeated():
    builder = Casts().cast(TO_BF16, [64, 64]).cast(TO_BF16, [64, 64])
    value = autocast_tax(builder.accumulate([64, 64]).accumulate([64, 64]).build())
    assert value.repeated_weight_casts == 0


def test_there_and_back():
    """16 bit to FP32 and back around an FP32-only operator is one round trip; FP32 in and out of a network is none."""
    value = autocast_tax(Casts().cast(TO_FLOAT, [8, 64]).cast(TO_BF16, [8, 64]).build())
    assert (value.round_trips, value.round_trip_ns) == (1, 6000)
    assert autocast_tax(Casts().cast(TO_BF16, [8, 64]).cast(TO_FLOAT, [8, 64]).build()).round_trips == 0
    assert autocast_tax(Casts().cast(TO_FLOAT, [8, 64]).cast(TO_BF16, [8, 32]).build()).round_trips == 0
    threads = Casts().cast(TO_FLOAT, [8, 64]).cast(TO_BF16, [8, 64], thread=AUTOGRAD)
    assert autocast_tax(threads.build()).round_trips == 0


def test_without_types_it_says_so():
    value = autocast_tax(TraceBuilder().step(1, 0, 100).op("aten::copy_", 0, 5).build())
    assert value.count == 0
    assert "record_shapes=True" in value.missing
