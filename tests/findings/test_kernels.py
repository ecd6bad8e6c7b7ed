"""Kernels that another setting avoids or speeds up, on recordings with known times."""

import pytest

from lightning_perf.findings.kernels import (
    autocast_tax,
    channels_last,
    half_precision,
    tensor_cores,
    tf32_off,
    unfused_optimizer,
)
from tests.findings.host_recordings import on_processor
from tests.findings.recordings import (
    A100,
    FP32_GEMM,
    STEP_US,
    STEPS,
    V100,
    Rule,
    analysis,
    finding_of,
    saving_of,
    training,
)
from tests.support.trace_builder import TraceBuilder


def updating(operator: str, optimizer: str = "AdamW", updates: int = 40) -> TraceBuilder:
    """Steps of 2000 µs; in the optimizer each update takes the host 20 µs and the device 5."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(3, 2000):
        builder.op("aten::mm", start, 1100)
        builder.launch("gemm", call_us=start + 5, call_duration_us=5, start_us=start + 10, duration_us=1180)
        builder.annotation(f"Optimizer.step#{optimizer}.step", start + 1200, 800)
        for number in range(updates):
            at = start + 1200 + 20 * number
            builder.op(operator, at, 20)
            builder.launch("update", call_us=at + 5, call_duration_us=5, start_us=at + 12, duration_us=5)
    return builder


def test_a_loop_over_parameters() -> None:
    finding = finding_of(unfused_optimizer, updating("aten::add_"))
    assert "fused=True" in finding.action
    # The phase has 0.8 ms, of which half of the 0.2 ms on the device is taken to stay.
    assert saving_of(finding) == pytest.approx((0.7 * 0.5, 0.7 * 0.9), rel=0.02)
    in_groups = finding_of(unfused_optimizer, updating("aten::_foreach_add_"))
    assert in_groups.saving_high_ms == pytest.approx(0.7 * 0.5, rel=0.02)


def on_cpu(*operators: str, name: str = "AdamW", threads: int = 4, update_us: float = 100) -> TraceBuilder:
    """Steps on a processor, the whole of each inside the optimizer's: 3 ms of forward and backward, ten updates."""
    builder = on_processor(threads=threads)
    step_us = 3000 + 10 * len(operators) * update_us
    for step in range(3):
        start = step * step_us
        builder.step(step, start, step_us).annotation(f"Optimizer.step#{name}.step", start, step_us)
        builder.op("aten::addmm", start + 10, 990)
        builder.op("autograd::engine::evaluate_function: AddmmBackward0", start + 1000, 2000)
        for number in range(10 * len(operators)):
            builder.op(operators[number % len(operators)], start + 3000 + number * update_us, update_us)
    return builder


ADAM = ("aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::addcdiv_")


def test_a_loop_on_a_processor() -> None:
    finding = finding_of(unfused_optimizer, on_cpu(*ADAM))
    assert "40 operators per step" in finding.evidence[0]
    assert finding.action == "Use torch.optim.AdamW(…, fused=True)."
    # 10 µs of the optimizer's step lie before the closure.
    assert saving_of(finding) == pytest.approx((4.01 * 0.4, 4.01 * 0.88))


def test_momentum_and_weight_decay_make_a_loop_of_plain_sgd() -> None:
    for operator in ("aten::mul_", "aten::add"):
        finding = finding_of(unfused_optimizer, on_cpu(operator, "aten::add_", name="SGD"))
        assert finding.saving_low_ms == pytest.approx(2.01 * 0.2)


def test_tiny_parameters_may_win_nothing_where_threads_share_them() -> None:
    tiny = finding_of(unfused_optimizer, on_cpu(*ADAM, update_us=9))
    assert tiny.saving_low_ms == 0
    alone = finding_of(unfused_optimizer, on_cpu(*ADAM, update_us=9, threads=1))
    assert alone.saving_low_ms == pytest.approx(0.37 * 0.4)


def converting(name: str = "void cudnn::ops::nchwToNhwcKernel<__half>", **options: str) -> TraceBuilder:
    """Steps of 10 ms with a kernel of 800 µs before a convolution."""
    builder = training(issues_us=700, **options)  # type: ignore[arg-type]
    for step in range(4):
        at = step * 10_020 + 620
        builder.op("aten::cudnn_convolution", at, 30)
        builder.launch(
            name, call_us=at + 5, call_duration_us=5, start_us=at + 1000, duration_us=800, stream=8
        )  # fmt: skip
    return builder


def test_fp32_on_an_a100() -> None:
    finding = finding_of(half_precision, training(kernel=FP32_GEMM, dtype="float"))
    assert 'precision="bf16-mixed"' in finding.action
    assert finding.severity == "high"
    # All of 9.98 ms is products, which speed up 2 to 17.6 times; the host needs 0.5 ms and the device waits 0.3 %.
    assert finding.saving_high_ms == pytest.approx(9.98 * (1 - 1 / 17.6), rel=0.01)
    assert finding.saving_low_ms == pytest.approx(9.52 / 2, rel=0.05)


def test_a_v100_has_no_bf16() -> None:
    assert 'precision="16-mixed"' in finding_of(half_precision, VOLTA).action


def test_a_loss_that_is_read_in_each_step_keeps_nothing_back() -> None:
    """The host waits in ``.item()`` for as long as the device works, and less with a faster one."""
    plain, reading = training(kernel=FP32_GEMM, dtype="float"), training(kernel=FP32_GEMM, dtype="float")
    for step in range(STEPS):
        end = (step + 1) * (STEP_US + 20)
        start = end - STEP_US + 700
        reading.op("aten::item", start, end - 5 - start).op("aten::_local_scalar_dense", start + 2, end - 9 - start)
        reading.runtime("cudaStreamSynchronize", start + 5, end - 15 - start)
    for rule in (half_precision, tf32_off):
        expected, found = finding_of(rule, plain), finding_of(rule, reading)
        assert found.saving_high_ms == expected.saving_high_ms
        assert found.saving_low_ms == pytest.approx(expected.saving_low_ms, rel=0.01)


def test_a_queue_that_is_full_keeps_nothing_back() -> None:
    """Of forty launches a step thirty return at once, and ten when the device takes a kernel from the queue."""
    builder = training(kernel=FP32_GEMM, dtype="float")
    for step in range(STEPS):
        start = step * (STEP_US + 20) + 700
        for number in range(40):
            long_us = 900 if number >= 30 else 4
            at = start + 8 * min(number, 30) + 910 * max(0, number - 30)
            builder.op("aten::relu", at, long_us + 2)
            builder.launch("elementwise", call_us=at + 1, call_duration_us=long_us, start_us=at + 1_000, duration_us=1)
    found = finding_of(half_precision, builder)
    assert found.saving_high_ms == pytest.approx(9.98 * (1 - 1 / 17.6), rel=0.02)


H100 = {"computeMajor": 9, "computeMinor": 0, "numSms": 132, "totalGlobalMem": 80 * 2**30}
AMPERE_GRAPHICS = {"computeMajor": 8, "computeMinor": 6, "numSms": 82, "totalGlobalMem": 24 * 2**30}
EQUAL_PEAKS = ("A10G", "L40", "GeForce RTX 3090", "GeForce RTX 4090", "GeForce RTX 5090")


@pytest.mark.parametrize(
    ("gpu", "properties", "most"),
    [
        ("NVIDIA A100-SXM4-40GB", A100, 8.8),
        ("NVIDIA H100 80GB HBM3", H100, 8.1),
        ("NVIDIA A10", AMPERE_GRAPHICS, 1.1 * 62.5 / 31.2),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", H100, 8.8),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", AMPERE_GRAPHICS, 2.2),
        ("AMD Radeon Graphics", H100, 2.2),
        *((f"NVIDIA {gpu}", AMPERE_GRAPHICS, 1.1) for gpu in EQUAL_PEAKS),
    ],
)
def test_tf32_speeds_products_up_by_the_peaks_of_the_device(gpu: str, properties: dict[str, int], most: float) -> None:
    finding = finding_of(tf32_off, training(kernel=FP32_GEMM, dtype="float", gpu=gpu, properties=properties))
    low_ms, high_ms = saving_of(finding)
    assert high_ms == pytest.approx(9.98 * (1 - 1 / most), rel=0.02)
    assert (low_ms == 0) == (most < 3)
    # At 8192³ an H100 SXM reaches 52.1 TFLOP/s in FP32 and 416.6 in TF32.
    assert most != 8.1 or low_ms <= 9.98 * (1 - 52.1 / 416.6) <= high_ms
    assert 'torch.set_float32_matmul_precision("high")' in finding.action
    assert "aten::mm" in finding.evidence[0]


PLAIN_HALF_GEMM = "ampere_hgemm_128x64_nn"


def test_uneven_dimensions() -> None:
    finding = finding_of(tensor_cores, training(kernel=PLAIN_HALF_GEMM, dtype="c10::Half", dims=1023))
    assert "multiple" in finding.evidence[0]
    assert "multiples of 8" in finding.action


def casting(rounds: int) -> TraceBuilder:
    """Steps of 10 ms on a device in which tensors are cast to FP32 and back."""
    builder = training(issues_us=1100)
    for step in range(4):
        for number in range(rounds):
            at = step * 10_020 + 640 + 20 * number
            source, target = ("c10::BFloat16", "float") if number % 2 == 0 else ("float", "c10::BFloat16")
            builder.op(
                "aten::copy_", at, 10, types=[target, source], dims=[[64, 512], [64, 512]]
            )  # fmt: skip
            builder.launch(
                f"copy_kernel_{target}", call_us=at + 2, call_duration_us=3,
                start_us=step * 10_020 + 5000 + 100 * number, duration_us=90, stream=8,
            )  # fmt: skip
    return builder


def test_casts_back_and_forth() -> None:
    finding = finding_of(autocast_tax, casting(20))
    assert "torch.compile" in finding.action
    assert finding.evidence[0].startswith("10 tensors per step cast to FP32 and back: 1.80 ms")


def casting_weights() -> TraceBuilder:
    """A weight that each step casts eight times, and one gradient that is accumulated."""
    builder = training(issues_us=1100)
    for step in range(4):
        start = step * 10_020 + 640
        for number in range(8):
            at = start + 20 * number
            builder.op("aten::copy_", at, 10, types=["c10::BFloat16", "float"], dims=[[512, 512], [512, 512]])
            builder.launch(
                "copy_kernel", call_us=at + 2, call_duration_us=3,
                start_us=step * 10_020 + 5000 + 200 * number, duration_us=190, stream=8,
            )  # fmt: skip
        builder.op("torch::autograd::AccumulateGrad", start + 300, 10, types=["float"], dims=[[512, 512]])
    return builder


def test_autocast_s_cache_is_turned_on_by_the_callback() -> None:
    finding = finding_of(autocast_tax, casting_weights())
    assert 'PerfCallback(precision="bf16-mixed")' in finding.action
    assert "without precision in the Trainer" in finding.action
    assert "7 casts per step of a weight that was already cast" in finding.evidence[0]


VOLTA = training(kernel="volta_sgemm_128x64_nn", dtype="float", gpu="Tesla V100-SXM2-16GB", properties=V100)
PASCAL = training(
    kernel="maxwell_sgemm_128x64_nn", dtype="float", gpu="Tesla P40", properties={"computeMajor": 6, "computeMinor": 0}
)


@pytest.mark.parametrize(
    ("rule", "recorded", "fires"),
    [
        (half_precision, PASCAL, False),
        (half_precision, training(), False),
        (tf32_off, VOLTA, False),
        (tf32_off, training(kernel=FP32_GEMM, dtype="float", gpu="AMD Instinct MI355X", properties=H100), False),
        (tf32_off, training(), False),
        (tensor_cores, training(dims=1023), False),
        (autocast_tax, casting(2), False),
        (channels_last, converting(), True),
        (channels_last, converting("elementwise"), False),
        # In FP32 without Tensor Cores, a model in channels last has such kernels, too.
        (channels_last, converting(kernel=FP32_GEMM, dtype="float"), False),
        (unfused_optimizer, updating("aten::_fused_adamw_"), False),
        (unfused_optimizer, updating("aten::add_", optimizer="LBFGS"), False),
        (unfused_optimizer, on_cpu("aten::add_", name="SGD"), False),
        (unfused_optimizer, on_cpu("aten::_fused_adamw_"), False),
        (unfused_optimizer, on_cpu("aten::_foreach_add_"), False),
    ],
)
def test_a_rule_fires_from_its_threshold_on(rule: Rule, recorded: TraceBuilder, fires: bool) -> None:
    assert (rule(analysis(recorded)) is not None) == fires
