"""Faults planted in recordings with known times: a finding names each, and mending it saves what was predicted.

The recording *after* is made by what the change does to the times, not by the finding's model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lightning_perf.findings.finding import Finding
from lightning_perf.findings.registry import find
from lightning_perf.findings.savings import step_ns
from tests.findings.host_recordings import convolving, on_processor
from tests.findings.recordings import A100, BF16_GEMM, FP32_GEMM, analysis, saving_of, training
from tests.support.trace_builder import TraceBuilder

STEPS = 4


def slow_dataset(*, workers: bool) -> TraceBuilder:
    """A step of 10 ms whose batch takes 8 ms to make: by the training thread, or by workers meanwhile."""
    loader = "_MultiProcessingDataLoaderIter" if workers else "_SingleProcessDataLoaderIter"
    return training(fetch_us=50 if workers else 8000, loader=loader)


def sync_every_step(*, item: bool) -> TraceBuilder:
    """Two kernels of 4 ms; between them the host waits for the first, and needs 2 ms to launch the second."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    types, dims = ["c10::BFloat16"] * 2, [[1024, 1024]] * 2
    step_us = 10_050 if item else 8050
    for step in range(STEPS):
        start = step * step_us
        second = start + 50 + 4000 + (2000 if item else 0)
        prepared = start + 50 + 4000 if item else start + 50
        builder.step(step, start, step_us)
        builder.op("aten::mm", start, 40, types=types, dims=dims)
        builder.launch(BF16_GEMM, call_us=start + 30, call_duration_us=8, start_us=start + 50, duration_us=4000)
        if item:
            builder.op("aten::item", start + 50, 4000)
            builder.runtime("cudaStreamSynchronize", start + 50, 4000)
        builder.op("aten::mm", prepared, 2000, types=types, dims=dims)
        builder.launch(BF16_GEMM, call_us=prepared + 1990, call_duration_us=8, start_us=second, duration_us=4000)
    return builder


def tiny_batches(*, graph: bool) -> TraceBuilder:
    """A hundred kernels of 8 µs, each launched by an operator of 40 µs, or all by a CUDA graph.

    Of the host's work the graph leaves 400 µs: the Python of the step, and one launch.
    """
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    step_us = 1200 if graph else 4000
    for step in range(STEPS):
        start = step * step_us
        builder.step(step, start, step_us)
        if graph:
            builder.runtime("cudaGraphLaunch", start + 300, 100, correlation=step + 1)
        for number in range(100):
            at = start + 40 * number
            if graph:
                builder.kernel("elementwise", start + 400 + 8 * number, 8, correlation=step + 1)
                continue
            builder.op("aten::add", at, 40)
            builder.launch("elementwise", call_us=at + 20, call_duration_us=5, start_us=at + 25, duration_us=8)
    return builder


def fp32_only(*, half: bool) -> TraceBuilder:
    """Ten products of 1 ms in FP32; in 16 bits each takes a third."""
    if not half:
        return training(kernel=FP32_GEMM, dtype="float")
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for start in builder.steps(STEPS, 3400):
        for number in range(10):
            at = start + 40 * number
            builder.op("aten::mm", at, 30, types=["c10::BFloat16"] * 2, dims=[[1024, 1024]] * 2)
            builder.launch(
                BF16_GEMM, call_us=at + 10, call_duration_us=8, start_us=start + 40 + 333 * number, duration_us=333
            )
    return builder


@dataclass(frozen=True)
class Plant:
    kind: str
    before: Callable[[], TraceBuilder]
    after: Callable[[], TraceBuilder]
    saving_ms: float
    advice: str


PLANTS = {
    "slow dataset": Plant(
        "input-bound",
        lambda: slow_dataset(workers=False),
        lambda: slow_dataset(workers=True),
        7.95,
        "num_workers=4",
    ),
    "sync every step": Plant(
        "sync-points", lambda: sync_every_step(item=True), lambda: sync_every_step(item=False), 2.0, "self.log"
    ),
    "tiny batches": Plant(
        "launch-bound", lambda: tiny_batches(graph=False), lambda: tiny_batches(graph=True), 2.8, "reduce-overhead"
    ),
    "FP32 only": Plant(
        "half-precision", lambda: fp32_only(half=False), lambda: fp32_only(half=True), 6.62, "bf16-mixed"
    ),
    "FP32 on a CPU": Plant(
        "cpu-bf16",
        lambda: convolving(on_processor(bf16=["avx512_bf16"])),
        lambda: convolving(on_processor(bf16=["avx512_bf16"]), dtype="c10::BFloat16", convolution_us=(1400, 2700)),
        3.9,
        "bf16-mixed",
    ),
    "channels first on a CPU": Plant(
        "cpu-channels-last",
        lambda: convolving(on_processor()),
        lambda: convolving(on_processor(), layout="last", pooling_us=100, normalization_us=(120, 200)),
        1.48,
        "channels_last",
    ),
}


def named(builder: TraceBuilder, kind: str) -> Finding | None:
    return next((finding for finding in find([analysis(builder)]) if finding.kind == kind), None)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_planted_fault_is_named_and_mending_it_saves_what_was_predicted(plant: Plant) -> None:
    finding = named(plant.before(), plant.kind)
    assert finding is not None
    low_ms, high_ms = saving_of(finding)
    assert plant.advice in finding.action
    saved_ms = (step_ns(analysis(plant.before())) - step_ns(analysis(plant.after()))) / 1e6
    assert saved_ms == pytest.approx(plant.saving_ms, abs=0.02)
    assert low_ms <= saved_ms <= high_ms
    assert named(plant.after(), plant.kind) is None
