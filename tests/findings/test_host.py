"""Devices that wait for the host, on recordings with known times."""

import inspect

import pytest
from msgspec.structs import replace

from lightning_perf import PerfCallback
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.conditions import cold_start
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.host import host_work, launch_bound, queued_stalls, small_kernels, sync_points
from lightning_perf.findings.kernels import cudnn_benchmark
from lightning_perf.findings.memory import memory_spare
from lightning_perf.run_files.probe import Probe, ProbedChange
from lightning_perf.trace.description import LOOP_KEY
from tests.findings.recordings import A100, BF16_GEMM, STEP_US, Rule, analysis, finding_of, saving_of, training
from tests.support.trace_builder import TraceBuilder


def eager(kernel_us: int, *, call_us: int = 5, steps: int = 3) -> TraceBuilder:
    """Operators of 20 µs back to back; each kernel starts when its call returns and runs for `kernel_us`."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(steps, 2000):
        for number in range(2000 // (15 + call_us)):
            at = start + number * (15 + call_us)
            builder.op("aten::add", at, 15 + call_us)
            builder.launch(
                "elementwise", call_us=at + 10, call_duration_us=call_us, start_us=at + 10 + call_us,
                duration_us=kernel_us,
            )  # fmt: skip
    return builder


def test_the_device_waits_for_the_host() -> None:
    finding = finding_of(launch_bound, eager(5))
    # Of each 20 µs the device works 5: it waits for 15 of 20.
    assert "75." in finding.title
    assert saving_of(finding) == pytest.approx((0.3 * 1.5, 0.9 * 1.5), rel=0.02)
    assert "torch.compile" in finding.action


def starting(first_us: int, *, first: int = 0, steps: int = 4) -> TraceBuilder:
    """Steps of 1 ms on a processor after one that takes longer."""
    builder = TraceBuilder()
    for number in range(steps):
        at, length_us = (first_us + 1000 * (number - 1), 1000) if number else (0, first_us)
        builder.step(first + number, at, length_us).op("aten::mm", at, length_us)
    return builder


def filling_the_queue() -> TraceBuilder:
    """Launches that wait for room in the queue while the device works."""
    builder = training()
    for step in range(4):
        for number in range(8):
            at = step * 10_020 + 700 + 1_100 * number
            builder.launch("elementwise", call_us=at, call_duration_us=1_000, start_us=at + 1_050, duration_us=1)
    return builder


def launching_graphs() -> TraceBuilder:
    """A graph takes long to launch, however warm its kernels are."""
    builder = training()
    for step in range(4):
        at = step * 10_020 + 700
        builder.runtime("cudaGraphLaunch", at, 9_000, correlation=step + 1)
        for number in range(50):
            builder.kernel("elementwise", at + 9_000 + 4 * number, 3, step + 1)
    return builder


def using(builder: TraceBuilder, peak: int) -> TraceBuilder:
    """The same with so many bytes of the device's memory in use at the peak."""
    return builder.memory(100, peak, allocated=peak, reserved=peak)


def queued(kernels: int = 200, stall_us: float = 0.0) -> TraceBuilder:
    """Steps of 2 ms with kernels of 7.9 µs and gaps of 2 µs, launched early. A longer gap is in the middle."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(3, 2000):
        builder.op("aten::add", start, 300)
        for number in range(kernels):
            at = start + 10 + 9.9 * number + (stall_us if number >= kernels / 2 else 0)
            builder.launch(
                "elementwise", call_us=start + number, call_duration_us=0.5, start_us=at, duration_us=7.9
            )  # fmt: skip
    return builder


def test_many_small_kernels_that_were_queued_in_time() -> None:
    finding = finding_of(small_kernels, queued())
    # 200 gaps of 2 µs, and half of 200 kernels of 7.9 µs.
    assert saving_of(finding) == pytest.approx((0.2, 0.4 + 0.79), rel=0.02)


def test_stalls_of_the_queue_are_not_gaps_between_kernels() -> None:
    finding = finding_of(small_kernels, queued(180, stall_us=150))
    assert saving_of(finding) == pytest.approx((0.18, 0.36 + 180 * 0.0079 / 2), rel=0.03)


def test_small_kernels_of_a_graph_are_not_told_to_become_one() -> None:
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for graph, start in enumerate(builder.steps(3, 2000), 1):
        builder.op("aten::add", start, 300)
        builder.runtime("cudaGraphLaunch", start, 5, graph)
        for number in range(200):
            builder.kernel("elementwise", start + 10 + 9.9 * number, 7.9, graph)
    finding = finding_of(small_kernels, builder)
    assert "graph" not in finding.action
    assert saving_of(finding) == (0, pytest.approx(0.4 + 0.79, rel=0.02))


def with_replay(recorded: RankAnalysis, low_ms: float, high_ms: float) -> RankAnalysis:
    """A rank with calls that a probe replayed from a CUDA graph."""
    middle = (low_ms + high_ms) / 2
    change = ProbedChange("cuda-graph", "CUDA graphs", middle * 1e6, low_ms * 1e6, high_ms * 1e6, 0.0, 1.5e6, 9)
    return replace(recorded, probe=Probe("A GPU", 0, (), 2e6, 1.6e6, 1.5e6, 5.0, (change,)))


def test_a_replay_narrows_the_range_or_leaves_fusing() -> None:
    recorded = analysis(queued())
    plain, probed, useless = (
        finding_of(small_kernels, one)
        for one in (recorded, with_replay(recorded, 0.35, 0.42), with_replay(recorded, -0.01, 0.02))
    )
    assert plain.basis == "general"
    assert "torch.compile(model). With" in plain.action
    assert (probed.basis, *saving_of(probed)) == ("probed", 0.35, 0.42)
    assert 'mode="reduce-overhead"' in probed.action
    assert "graph" not in useless.action
    assert saving_of(useless) == (0, pytest.approx(0.79, rel=0.02))


def waiting(
    wait_us: int, drained_us: int, operator: str = "aten::item", call: str = "cudaStreamSynchronize"
) -> TraceBuilder:
    """In each step of 1000 µs the host waits for a kernel, and the device then has nothing to do for a while."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(3, 1000):
        builder.op("aten::mm", start, 20)
        builder.launch("first", call_us=start + 5, call_duration_us=5, start_us=start + 10, duration_us=490)
        builder.op(operator, start + 500 - wait_us, wait_us)
        builder.runtime(call, start + 500 - wait_us, wait_us)
        builder.op("aten::mm", start + 500, drained_us)
        builder.launch(
            "second", call_us=start + 500 + drained_us - 5, call_duration_us=5,
            start_us=start + 500 + drained_us, duration_us=500 - drained_us,
        )  # fmt: skip
    return builder


def test_a_wait_after_which_the_device_runs_dry() -> None:
    finding = finding_of(sync_points, waiting(400, 200))
    # After the wait, and in the next step before its first kernel, of which the last has none.
    assert saving_of(finding) == pytest.approx((0.1, (2 * 0.21 + 0.2) / 3))
    assert "aten::item (.item())" in finding.evidence[0]
    short = finding_of(sync_points, waiting(50, 200))
    assert short.saving_high_ms == pytest.approx(0.05)  # no more than was waited


def test_a_read_that_finds_an_empty_queue_is_not_told_of() -> None:
    builder = waiting(400, 200)
    for step in range(3):
        builder.op("aten::nonzero", 1000 * step + 2, 3).runtime("cudaStreamSynchronize", 1000 * step + 2, 1)
    finding = finding_of(sync_points, builder)
    assert "once per step" in finding.title
    (evidence,) = finding.evidence
    assert "aten::item" in evidence


def test_measurements_of_cudnn_are_told_apart() -> None:
    measuring = waiting(400, 200, "aten::conv2d", "cudaEventSynchronize")
    assert sync_points(analysis(measuring)) is None
    finding = finding_of(cudnn_benchmark, measuring)
    assert finding.saving_low_ms == pytest.approx(0.4)
    assert "Trainer(benchmark=False)" in finding.action
    assert "torch.backends" not in finding.action


def test_what_the_progress_bar_reads_is_told_from_what_the_model_reads() -> None:
    def read(phase: str) -> TraceBuilder:
        builder = waiting(400, 200)
        for step in range(3):
            builder.annotation(f"perf::{phase}", 1000 * step, 800)
        return builder

    inside, between = (finding_of(sync_points, read(phase)) for phase in ("forward", "checkpoint"))
    assert "aten::item (.item()) in forward: 1 per step" in inside.evidence[0]
    assert "instead of loss.item()" in inside.action
    assert "while a checkpoint is saved" in between.evidence[0]
    finding = finding_of(sync_points, waiting(400, 200).annotation("perf::forward", 0, 50))
    assert "in a callback, a logger or for the progress bar" in finding.evidence[0]
    assert "Log without prog_bar=True" in finding.action
    # Of a recording that others made nobody knows what runs between phases.
    foreign = finding_of(sync_points, waiting(400, 200))
    assert "progress bar" not in f"{foreign.evidence[0]}{foreign.action}"


def test_lightning_reads_values_for_a_progress_bar_that_is_off() -> None:
    def logging(values: list[str]) -> Finding:
        builder = waiting(400, 200).annotation("perf::forward", 0, 50)
        builder.top_level[LOOP_KEY] = {"bar_values": values}
        return finding_of(sync_points, builder)

    shown, none = logging(["loss", "acc"]), logging([])
    assert "in Lightning, which reads loss, acc for the progress bar" in shown.evidence[0]
    assert "Log without prog_bar=True" in shown.action
    assert "in a callback or a logger: 1 per step" in none.evidence[0]
    assert "prog_bar" not in none.action


UNSCALED = "aten::_amp_foreach_non_finite_check_and_unscale_"


def reading_scaler(*, fused: bool, name: str = "NVIDIA A100-SXM4-40GB", major: int = 8) -> TraceBuilder:
    """Steps that wait for a read. A fused optimizer checks after it, so that the read is the user's."""
    builder = waiting(400, 200)
    builder.top_level["deviceProperties"] = [{"id": 0, "name": name, "computeMajor": major, "computeMinor": 0}]
    for start in (0, 1000, 2000):
        builder.op("aten::item", start + 40, 2)  # the user's, of a gradient's norm
        builder.op(UNSCALED, start + (505 if fused else 30), 5)
        builder.annotation("Optimizer.step#SGD.step", start + 520, 100)
        builder.op("aten::_amp_update_scale_", start + 700, 5)
    return builder


def test_the_read_of_a_scaler_is_not_blamed_on_the_user() -> None:
    scaler, user = (finding_of(sync_points, reading_scaler(fused=fused)) for fused in (False, True))
    assert "GradScaler, which reads whether gradients overflowed" in scaler.evidence[0]
    assert "loss.item()" not in scaler.action
    assert "with_stack" not in scaler.action
    assert "fused=True" in scaler.action
    assert "gradient_clip_val" in scaler.action
    assert "bf16-mixed" in scaler.action
    assert "GradScaler" not in user.evidence[0]
    assert "loss.item()" in user.action
    on_v100 = finding_of(sync_points, reading_scaler(fused=False, name="Tesla V100-SXM2-16GB", major=7))
    assert "bf16" not in on_v100.action
    skipping = waiting(400, 200)  # it skips the step
    for start in (0, 1000, 2000):
        skipping.op(UNSCALED, start + 30, 5).op("aten::_amp_update_scale_", start + 700, 5)
    assert "GradScaler" in finding_of(sync_points, skipping).evidence[0]


def pausing(pause_us: int, steps: int = 4) -> TraceBuilder:
    """Steps of 10 ms of compute, after which Python runs alone for a while."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(steps, 10_000 + pause_us):
        builder.annotation("perf::forward", start, 9_000)
        builder.op("aten::mm", start, 50)
        builder.launch(BF16_GEMM, call_us=start, call_duration_us=2, start_us=start + 2, duration_us=9_998)
    return builder


def test_python_holds_up_the_device() -> None:
    finding = finding_of(host_work, pausing(1000))
    assert finding.saving_high_ms == pytest.approx(0.9, rel=0.01)
    assert "log_every_n_steps=50" in finding.action


@pytest.mark.parametrize(("every", "advised"), [(1, True), (10, True), (50, False), (200, False)])
def test_a_logging_interval_in_use_is_not_advised(every: int, advised: bool) -> None:
    builder = pausing(1000)
    builder.top_level[LOOP_KEY] = {"loggers": ["CSVLogger"], "log_every_n_steps": every}
    assert ("log_every_n_steps" in finding_of(host_work, builder).action) == advised


def test_the_end_of_the_only_step_of_another_recorder_may_be_its_own_work() -> None:
    builder = pausing(1000, steps=1)
    assert host_work(analysis(builder)) is None
    builder.top_level[LOOP_KEY] = {"loggers": ["CSVLogger"], "log_every_n_steps": 1}  # our own marks end with the step
    assert saving_of(finding_of(host_work, builder)) == pytest.approx((0.5, 0.9), rel=0.01)


def test_python_around_a_compilation_is_no_host_work() -> None:
    builder = pausing(1000)
    builder.op("entire_frame_compile", 9_100, 1_500).op("Torch-Compiled Region: 0/0", 10_700, 20)
    assert host_work(analysis(builder)) is None


def test_stacks_are_advised_where_they_are_missing_and_shown_where_they_are_not() -> None:
    assert inspect.signature(PerfCallback).parameters["with_stack"]
    reading, writing = waiting(400, 200), pausing(1500)
    for rule, builder in ((sync_points, reading), (host_work, writing)):
        assert "PerfCallback(with_stack=True)" in finding_of(rule, builder).action
        builder.top_level["with_stack"] = 1
    for step in range(3):
        reading.host("python_function", "train.py(20): training_step", 1000 * step, 900)
        reading.host("python_function", "torch/_tensor.py(5): item", 1000 * step + 90, 420)
    for start in range(0, 4 * 11_500, 11_500):
        writing.host("python_function", "log.py(3): write_images", start + 9_500, 1_900)
    read, written = finding_of(sync_points, reading), finding_of(host_work, writing)
    assert "in training_step (train.py:20)" in read.evidence[0]
    assert read.action.startswith("Look at training_step (train.py:20).")
    assert written.action.startswith("Look at write_images (log.py:3).")
    assert not any("with_stack" in finding.action for finding in (read, written))


def stalled(stall_us: int, *, queued: bool = True, steps: bool = True) -> TraceBuilder:
    """Four steps of two kernels, both launched at once, the second of which starts late."""
    builder = TraceBuilder()
    for number in range(4):
        start = number * STEP_US
        if steps:
            builder.step(number, start, STEP_US)
        builder.launch("first", call_us=start, call_duration_us=5, start_us=start + 5, duration_us=1000)
        call = start + 10 if queued else start + 1000 + stall_us
        rest = STEP_US - 1010 - stall_us
        builder.launch(
            "second", call_us=call, call_duration_us=5, start_us=start + 1005 + stall_us, duration_us=rest
        )  # fmt: skip
    return builder


def test_launched_work_that_does_not_start() -> None:
    finding = finding_of(queued_stalls, stalled(6000))
    assert finding.title.startswith("Queued work does not start: the device idles 60.0 % of the step")
    assert (finding.saving_low_ms, finding.saving_high_ms, finding.severity) == (0, 6, "high")
    assert finding.evidence == (
        "1 gap above 100 µs per step, 6.00 ms together. Launched work waits there for something other than the host.",
        "The longest gap is 6.00 ms in step 0, 1.00 ms after the start of the recording.",
    )


def test_short_gaps_between_queued_kernels_are_no_stalls() -> None:
    builder = TraceBuilder().step(0, 0, STEP_US)
    for number in range(50):
        builder.launch("k", call_us=number * 10, call_duration_us=5, start_us=500 + number * 190, duration_us=95)
    value = analysis(builder)
    assert value.idle is not None
    assert {row.name: row.total_ns for row in value.idle.classes}["kernel_gap"] > 4_000_000
    assert (value.idle.stalls, value.idle.stalled_ns) == (1, 495_000)  # before the first kernel
    assert queued_stalls(value) is None


def test_stalls_of_a_recording_without_steps() -> None:
    finding = finding_of(queued_stalls, stalled(6000, steps=False))
    assert finding.title.endswith("60.0 % of the recording with launched work in its queue")
    assert finding.evidence[0].startswith("4 gaps above 100 µs in the recording, 24.0 ms together")


@pytest.mark.parametrize(
    ("rule", "recorded", "fires"),
    [
        (launch_bound, eager(16), True),
        (launch_bound, eager(18), False),
        (launch_bound, training(), False),
        (launch_bound, eager(5, call_us=400), False),  # the first steps
        (cold_start, eager(5, call_us=400), True),
        (cold_start, eager(5), False),
        (cold_start, filling_the_queue(), False),
        (cold_start, starting(3000), True),
        (cold_start, starting(2900), False),
        (cold_start, starting(3000, first=2), False),  # not the first step of the training
        (cold_start, starting(3000, steps=2), False),
        (cold_start, launching_graphs(), False),
        (memory_spare, using(eager(5), 2**30), True),
        (memory_spare, using(eager(5), 20 * 2**30), False),
        (memory_spare, using(training(), 2**30), False),
        (small_kernels, training(), False),
        (sync_points, waiting(400, 10), False),
        (cudnn_benchmark, waiting(400, 200), False),
        (host_work, pausing(340), False),
        (host_work, pausing(350), True),
        (queued_stalls, stalled(495), False),
        (queued_stalls, stalled(505), True),
        (queued_stalls, stalled(6000, queued=False), False),
        (queued_stalls, training(), False),
    ],
)
def test_a_rule_fires_from_its_threshold_on(rule: Rule, recorded: TraceBuilder, fires: bool) -> None:
    assert (rule(analysis(recorded)) is not None) == fires
