from __future__ import annotations

import msgspec
import pytest

from lightning_perf.analysis.precision.amp_gain import AmpGain, AmpPart, amp_gain, check_prediction
from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 40 * 2**30, "computeMajor": 8, "computeMinor": 0}
V100 = {**A100, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7}
UNKNOWN = {**A100, "name": "Some GPU", "computeMinor": 6}
STEP_US = 1000


def recording(device: dict[str, object], *kernels: tuple[str, str, int, list[object]], kind: str = "float") -> Trace:
    """One step of a millisecond with kernels back to back from 100 µs, each of (operator, kernel, µs, dims)."""
    builder = TraceBuilder(deviceProperties=[device]).step(1, 0, STEP_US)
    start = 100
    for number, (operator, kernel, duration, dims) in enumerate(kernels):
        if operator.startswith("Optimizer"):
            builder.annotation(operator, 10 + 5 * number, 5)
            operator = "aten::add_"
        builder.op(operator, 10 + 5 * number, 4, types=[kind] * len(dims), dims=dims)
        builder.launch(kernel, call_us=11 + 5 * number, call_duration_us=1, start_us=start, duration_us=duration)
        start += duration
    issued = 10 + 5 * len(kernels)
    return builder.runtime("cudaDeviceSynchronize", issued, STEP_US - issued).build()


def predict(trace: Trace) -> AmpGain | None:
    analysis = analyze_rank(trace)
    return amp_gain(trace, analysis.breakdown, analysis.launches, analysis.host_pace)


def predicted(trace: Trace) -> tuple[AmpGain, dict[str, AmpPart]]:
    gain = predict(trace)
    assert gain is not None
    return gain, {part.name: part for part in gain.parts}


MM = ("aten::mm", "volta_sgemm_128x64_nn", 400, [[64, 64], [64, 64]])
RELU = ("aten::relu", "vectorized_elementwise_kernel", 200, [[64, 64]])
SOFTMAX = ("aten::_softmax", "softmax_warp_forward", 100, [[64, 64]])
STEP = ("Optimizer.step#SGD.step", "multi_tensor_apply_kernel", 100, [[64, 64]])


def test_kernels_fall_into_their_parts():
    gain, parts = predicted(recording(UNKNOWN, MM, RELU, SOFTMAX, STEP))
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
    gain, parts = predicted(builder.build())
    _, expected = predicted(plain)
    assert {name: parts[name] for name in expected} == expected
    assert set(parts) - set(expected) == {"fixed"}
    assert parts["fixed"].time_ns == 100_000
    assert gain.most_saving_ns > 0


def test_saving_by_hand_without_known_peaks():
    gain, parts = predicted(recording(UNKNOWN, MM, RELU, SOFTMAX))
    assert (parts["products"].fastest_ns, parts["products"].slowest_ns) == (100_000, 200_000)
    assert (parts["following"].fastest_ns, parts["following"].slowest_ns) == (100_000, 200_000)
    analysis = analyze_rank(recording(UNKNOWN, MM, RELU, SOFTMAX))
    assert analysis.launches is not None
    assert analysis.launches.launch_bound is not None
    exposed = 1 - analysis.launches.launch_bound.share
    assert gain.least_saving_ns == pytest.approx(200_000 * exposed)
    assert gain.most_saving_ns == pytest.approx(400_000 * exposed)
    assert gain.speedup == pytest.approx((1e6 / (1e6 - 200e3 * exposed), 1e6 / (1e6 - 400e3 * exposed)))
    assert msgspec.json.decode(msgspec.json.encode(gain), type=AmpGain) == gain


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
    _, parts = predicted(recording(device, MM))
    assert parts["products"].fastest_ns == pytest.approx(400_000 / factor)


def test_products_on_tensor_cores_gain_less():
    kernel = ("aten::mm", "ampere_sgemm_tf32_128x64", 400, [[64, 64], [64, 64]])
    tf32 = ("aten::mm", "ampere_s1688gemm_128x64", 400, [[64, 64], [64, 64]])
    assert set(predicted(recording(A100, kernel, tf32))[1]) <= {"products", "products on Tensor Cores"}
    _, parts = predicted(recording(A100, tf32))
    assert (parts["products on Tensor Cores"].fastest_ns, parts["products on Tensor Cores"].slowest_ns) == (
        200_000,
        pytest.approx(400_000 / 1.2),
    )


def test_attention_in_fp32_is_made_of_three_products_in_tf32():
    attention = "aten::_efficient_attention_forward"
    kernel = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)"
    outer = "aten::_scaled_dot_product_efficient_attention"
    builder = TraceBuilder(deviceProperties=[A100]).step(1, 0, STEP_US).op(outer, 0, 50)
    builder.op(attention, 5, 40, types=["float"] * 3, dims=[[1, 8, 4, 8]] * 3)
    builder.launch(kernel, call_us=10, call_duration_us=5, start_us=100, duration_us=600)
    _, parts = predicted(builder.build())
    part = parts["products on Tensor Cores"]
    assert (part.fastest_ns, part.slowest_ns) == (pytest.approx(600_000 / 6), pytest.approx(600_000 / 1.5))


def test_memory_bounds_what_reads_much():
    # 200 MB of operands at 1555 GB/s take 257 µs in FP32 and 129 µs in 16 bits: no factor of 8.
    elements = 50_000_000
    wide = ("aten::mm", "sgemm", 260, [[1, elements // 2], [elements // 2, 1]])
    _, parts = predicted(recording(A100, wide))
    products = parts["products"]
    assert products.fastest_ns == pytest.approx(2 * elements / 1555e9 * 1e9)
    assert products.memory_bound_ns == 260_000
    assert products.slowest_ns == pytest.approx(130_000, rel=0.02)


def test_casting_the_weights_is_counted_against_it():
    linear = ("aten::addmm", "sgemm", 300, [[4096], [32, 4096], [4096, 4096]])
    gain, _ = predicted(recording(A100, linear))
    assert gain.casts_ns == pytest.approx(12 * 4096 * 4096 / 1555)
    assert gain.least_saving_ns < gain.most_saving_ns


def test_device_that_waits_for_the_host_gains_nothing():
    builder = TraceBuilder(deviceProperties=[UNKNOWN]).step(1, 0, STEP_US)
    # The host is inside operators throughout, and kernels are a tenth of each.
    for n in range(10):
        builder.op("aten::mm", 100 * n, 99, types=["float"], dims=[[8, 8], [8, 8]])
        builder.launch("sgemm", call_us=100 * n + 80, call_duration_us=5, start_us=100 * n + 88, duration_us=10)
    gain, _ = predicted(builder.build())
    assert gain.most_saving_ns <= 10_000


def test_nothing_to_predict():
    assert (
        predict(recording(A100, ("aten::mm", "ampere_fp16_s16816gemm", 400, [[64, 64], [64, 64]]), kind="c10::Half"))
        is None
    )
    assert predict(TraceBuilder().step(1, 0, 100).op("aten::mm", 10, 20).build()) is None


def test_check_of_a_prediction():
    gain = AmpGain("A100 40GB", 5, 100e6, (), 0.0, 20e6, 60e6)
    assert not check_prediction(gain, 90e6).held
    assert not check_prediction(gain, 30e6).held
    with pytest.raises(ValueError, match="must be above 0"):
        check_prediction(gain, 0)
