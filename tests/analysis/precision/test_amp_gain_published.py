"""Predictions against what others measured on GPUs, and against the bytes that casts and layouts move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.precision.amp_gain import AmpGain, AmpPart
from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 80 * 2**30, "computeMajor": 8, "computeMinor": 0}
H100 = {**A100, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}
V100 = {**A100, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 32 * 2**30, "computeMajor": 7}

Call = tuple[str, str, float, Any]


def recording(device: dict[str, object], *calls: Call) -> Trace:
    """One step that its kernels fill, each of (operator, kernel, µs, dims); the host waits at the end."""
    total_us = sum(call[2] for call in calls)
    builder = TraceBuilder(deviceProperties=[device]).step(1, 0, total_us + 100)
    start = 50.0
    for number, (operator, kernel, duration, dims) in enumerate(calls):
        builder.op(operator, 10 + 5 * number, 4, types=["float"] * len(dims), dims=dims)
        builder.launch(kernel, call_us=11 + 5 * number, call_duration_us=1, start_us=start, duration_us=duration)
        start += duration
    issued = 10 + 5 * len(calls)
    return builder.runtime("cudaDeviceSynchronize", issued, total_us + 100 - issued).build()


def gain_of(trace: Trace) -> AmpGain:
    gain = analyze_rank(trace).amp_gain
    assert gain is not None
    return gain


def parts_of(trace: Trace) -> dict[str, AmpPart]:
    return {part.name: part for part in gain_of(trace).parts}


def of_compute(gain: AmpGain) -> tuple[float, float]:
    """Least and most speed-up of the kernels alone."""
    total = sum(part.time_ns for part in gain.parts)
    slowest, fastest = (sum(getattr(part, end) for part in gain.parts) for end in ("slowest_ns", "fastest_ns"))
    return total / slowest, total / fastest


@pytest.mark.parametrize(("arithmetic", "tflops"), [("FP16, Nsight profile", 762.9), ("BF16, PyTorch 2.11", 798.0)])
def test_fp32_products_on_an_h100(arithmetic: str, tflops: float) -> None:
    flops = 2 * 8192**3
    fp32_us = flops / 52.1e12 * 1e6
    shape = [8192, 8192]
    (part,) = gain_of(recording(H100, ("aten::mm", "sm80_xmma_gemm_f32f32_simt_sgemm", fp32_us, [shape] * 2))).parts
    measured = tflops / 52.1
    assert part.name == "products"
    assert part.time_ns / part.slowest_ns <= measured <= part.time_ns / part.fastest_ns, arithmetic
    assert part.time_ns / part.fastest_ns <= 1.2 * measured  # and no wider than it has to be


def test_tf32_products_on_an_h100() -> None:
    tf32_us = 2 * 8192**3 / 416.6e12 * 1e6
    kernel = "nvjet_sss_tf32_128x256_TNT"
    (part,) = gain_of(recording(H100, ("aten::mm", kernel, tf32_us, [[8192, 8192]] * 2))).parts
    assert part.name == "products on Tensor Cores"
    assert part.time_ns / part.slowest_ns <= 762.9 / 416.6 <= part.time_ns / part.fastest_ns


# A recorded step of ResNet-50 on a V100 spends so much on convolutions and products, and on what follows them
# (pytorch/kineto, tb_plugin/samples/resnet50_num_workers_4).
PRODUCTS, FOLLOWING, REST = 0.678, 0.306, 0.016


def resnet50(device: dict[str, object], products_us: float, following_us: float, rest_us: float, tf32: bool) -> Trace:
    convolution = (
        "cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4" if tf32 else "volta_scudnn_128x64"
    )
    return recording(
        device,
        ("aten::cudnn_convolution", convolution, products_us, [[32, 64, 56, 56], [64, 64, 3, 3]]),
        ("aten::cudnn_batch_norm", "bn_fw_tr_1C11_kernel_NCHW", following_us, [[32, 64, 56, 56]]),
        ("aten::_foreach_add_", "multi_tensor_apply_kernel", rest_us, [[64]]),
    )


@pytest.mark.parametrize(("fp32", "mixed"), [(367, 1200), (356, 1156)], ids=["16 GB", "32 GB"])
def test_resnet50_from_fp32_on_a_v100(fp32: float, mixed: float) -> None:
    """NVIDIA publishes 3.26 and 3.24 times (DeepLearningExamples, resnet50v1.5, NGC 21.03), in images per second."""
    step_us = 32 / fp32 * 1e6
    trace = resnet50(V100, PRODUCTS * step_us, FOLLOWING * step_us, REST * step_us, tf32=False)
    low, high = gain_of(trace).speedup
    assert low <= mixed / fp32 <= high


@pytest.mark.corpus
@pytest.mark.parametrize("workers", ["0/worker0.1623143089861.769c3eb", "4/worker0.1623212756351.234cf25"])
def test_recorded_resnet50_on_a_v100(corpus: Path, workers: str) -> None:
    gain = gain_of(read_trace(corpus / "traces" / "kineto" / f"resnet50_num_workers_{workers}.pt.trace.json.gz"))
    low, high = of_compute(gain)
    assert low <= 3.24 <= 3.26 <= high


def test_resnet50_from_tf32_on_an_a100() -> None:
    """NVIDIA publishes 938 images per second in TF32 and 2470 in mixed precision with channels last, 2.63 times."""
    v100_us, step_us = 32 / 356 * 1e6, 32 / 938 * 1e6
    # What moves data takes the A100 80GB as much less as its memory is faster: 2039 against 900 GB/s.
    following_us, rest_us = (share * v100_us * 900 / 2039 for share in (FOLLOWING, REST))
    products_us = step_us - following_us - rest_us
    low, high = gain_of(resnet50(A100, products_us, following_us, rest_us, tf32=True)).speedup
    assert low <= 2470 / 938 <= high


CONVOLUTION = [[8, 64, 32, 32], [64, 64, 3, 3]]
DEPTHWISE = [[8, 64, 32, 32], [64, 1, 3, 3]]


@pytest.mark.parametrize(
    ("operator", "kernel", "dims"),
    [
        (
            "aten::cudnn_convolution",
            "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float>",
            CONVOLUTION,
        ),
        ("aten::cudnn_convolution", "void cudnn::cnn::conv2d_grouped_direct_kernel<float, float>", DEPTHWISE),
        ("aten::_convolution", "void at::native::conv_depthwise2d_forward_kernel<3, float, int>", DEPTHWISE),
        ("aten::convolution_backward", "void cudnn::cnn::dgrad2d_grouped_direct", [DEPTHWISE[0], *DEPTHWISE]),
        ("aten::cudnn_convolution", "void xmma_cudnn::implicit_gemm_indexed_tf32_kernel", DEPTHWISE),
        ("aten::mm", "void cublasLt::splitKreduce_kernel<32, 16, int, float>", [[64, 64], [64, 64]]),
        ("aten::mm", "void gemv2T_kernel_val<int, int, float, float, float>", [[64, 64], [64, 1]]),
    ],
)
def test_what_memory_bounds_is_not_promised_twice_the_speed(operator: str, kernel: str, dims: list[object]) -> None:
    trace = recording(A100, (operator, kernel, 1000, dims), ("aten::mm", "ampere_sgemm_128x64_nn", 100, [[64, 64]] * 2))
    bound = parts_of(trace)["products"].time_ns
    assert bound == 100_000  # the plain product alone
    moved = next(part for part in parts_of(trace).values() if part.time_ns == 1_000_000)
    assert (moved.slowest_ns, moved.fastest_ns) == (1_000_000, pytest.approx(500_000, rel=0.02))


def test_casts_around_what_autocast_keeps_in_fp32_are_charged() -> None:
    rows = [8192, 4096]
    product = ("aten::mm", "ampere_sgemm_128x64_nn", 3000, [[64, 64], [64, 64]])
    norm = ("aten::native_layer_norm", "vectorized_layer_norm_kernel", 200, [rows, [4096], [4096]])
    backward = ("aten::native_layer_norm_backward", "layer_norm_grad_input_kernel", 300, [rows, rows])
    without, with_norm = gain_of(recording(A100, product)), gain_of(recording(A100, product, norm, backward))
    # 16 bits are read and 32 written before, 32 read and 16 written after; so in the backward pass.
    expected_ns = 2 * (2 + 4 + 4 + 2) * 8192 * 4096 / 2039
    assert (without.casts_ns, with_norm.casts_ns) == (0.0, pytest.approx(expected_ns))
    assert without.least_saving_ns - with_norm.least_saving_ns == pytest.approx(expected_ns, rel=0.05)
    assert with_norm.most_saving_ns == pytest.approx(without.most_saving_ns, rel=0.05)


def test_softmax_is_cast_too() -> None:
    scores = [8, 16, 512, 512]
    product = ("aten::bmm", "ampere_sgemm_128x64_nn", 3000, [[64, 64, 64]] * 2)
    softmax = ("aten::_softmax", "cunn_SoftMaxForward", 200, [scores])
    assert gain_of(recording(A100, product, softmax)).casts_ns == pytest.approx(12 * 8 * 16 * 512 * 512 / 2039)


@pytest.mark.parametrize(
    ("name", "major", "minor", "listed"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 9, 0, "NVIDIA H100 80GB HBM3"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 8, 0, "NVIDIA A100-SXM4-80GB"),
    ],
)
def test_a_slice_of_a_device_is_promised_what_the_device_is(name: str, major: int, minor: int, listed: str) -> None:
    properties = {**A100, "computeMajor": major, "computeMinor": minor}
    call = ("aten::mm", "ampere_sgemm_128x64_nn", 3000.0, [[512, 512], [512, 512]])
    part, whole = (
        parts_of(recording({**properties, "name": gpu}, call))["products"].fastest_ns for gpu in (name, listed)
    )
    assert part == pytest.approx(whole, rel=0.01)


def test_an_unlisted_device_of_amd_is_promised_no_more_than_before() -> None:
    device = {**A100, "name": "AMD Radeon Graphics", "computeMajor": 9}
    call = ("aten::mm", "Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1", 3000.0, [[512, 512], [512, 512]])
    assert parts_of(recording(device, call))["products"].fastest_ns == pytest.approx(3_000_000 / 4)
