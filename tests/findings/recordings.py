"""Recordings of trainings whose only fault, if any, is the one that a test puts in."""

from collections.abc import Callable
from typing import Any

from lightning_perf.analysis.rank import RankAnalysis, analyze_rank
from lightning_perf.findings.finding import Finding
from lightning_perf.trace.tensors import TENSORS_KEY
from tests.support.trace_builder import TraceBuilder

Rule = Callable[[RankAnalysis], "Finding | None"]

STEP_US = 10_000
STEPS = 4
BF16_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
FP32_GEMM = "ampere_sgemm_128x64_nn"

A100 = {"computeMajor": 8, "computeMinor": 0, "numSms": 108, "totalGlobalMem": 40 * 2**30}
V100 = {"computeMajor": 7, "computeMinor": 0, "numSms": 80, "totalGlobalMem": 16 * 2**30}


def training(
    *,
    kernel: str = BF16_GEMM,
    dtype: str = "c10::BFloat16",
    gpu: str = "NVIDIA A100-SXM4-40GB",
    properties: dict[str, int] | None = None,
    fetch_us: int = 20,
    dims: int = 1024,
    loader: str = "_MultiProcessingDataLoaderIter",
    issues_us: int = 600,
) -> TraceBuilder:
    """Four steps of ten matrix products, launched ahead of the device, which computes for 10 ms after each fetch.

    The host's own marks end when it has launched all, `issues_us` after the fetch.
    """
    builder = TraceBuilder().gpu(gpu, **(properties or A100))
    for step in range(STEPS):
        start = step * (STEP_US + fetch_us)
        builder.step(step, start, fetch_us + issues_us)
        builder.annotation(f"enumerate(DataLoader)#{loader}.__next__", start, fetch_us)
        for number in range(10):
            at = start + fetch_us + 60 * number
            builder.op("aten::mm", at, 50, types=[dtype, dtype], dims=[[dims, dims], [dims, dims]])
            builder.launch(
                kernel, call_us=at + 10, call_duration_us=8,
                start_us=start + fetch_us + 20 + 998 * number, duration_us=998,
            )  # fmt: skip
    return builder


def analysis(builder: TraceBuilder) -> RankAnalysis:
    """The analysis of a recording."""
    return analyze_rank(builder.build())


def reducing(exposed_us: int, *, rank: int = 0, compute_us: int = 1000, wrapper: bool = True) -> TraceBuilder:
    """Steps of compute, then an all-reduce that no compute hides."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100).rank(rank, 2)
    length = compute_us + exposed_us
    for step in range(3):
        start = step * 2000
        builder.step(step, start, length)
        if wrapper:
            builder.annotation("DistributedDataParallel.forward", start, 50)
        builder.op("aten::mm", start, 50)
        builder.launch(BF16_GEMM, call_us=start, call_duration_us=1, start_us=start + 1, duration_us=compute_us - 1)
        builder.launch(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", call_us=start + 10, call_duration_us=5,
            start_us=start + compute_us, duration_us=exposed_us, stream=20,
        )  # fmt: skip
    return builder


def holding(**parts: int) -> TraceBuilder:
    """A device of 40 GiB with some memory, in GiB, for each part of the peak, in two blocks of a model."""
    gib = 2**30
    listed = {name: parts.get(name, 0) * gib for name in ("parameters", "gradients", "optimizer_state")}
    lists = {name: [[0, 2**40 + code, size]] for code, (name, size) in enumerate(listed.items()) if size}
    builder = training()
    builder.top_level[TENSORS_KEY] = {"start": lists, "end": lists, "available_bytes": {}}
    blocks, level = [gib] * parts.get("activations", 0), sum(listed.values())
    reserved = level + (parts.get("activations", 0) + parts.get("fragmentation", 0)) * gib
    builder.memory(1, 2, address=1, allocated=level + 2, reserved=reserved)
    step_us = 10_020
    for number in range(2):
        builder.python(f"nn.Module: Block_{number}", step_us + 30 + 200 * number, 190)
        builder.python(f"nn.Module: Linear_{number}", step_us + 35 + 200 * number, 180)
    builder.python("nn.Module: Net_0", step_us + 25, 450)
    for number, size in enumerate(blocks):
        level += size
        at = step_us + 40 + 200 * (number % 2) + number
        builder.memory(at, size, address=2**30 + number, allocated=level, reserved=reserved)
    backward_us = step_us + 500
    builder.op("AddmmBackward0", backward_us, 50, thread=2000, forward_thread=1, sequence=1)
    for number, size in enumerate(blocks):
        level -= size
        builder.memory(backward_us + 1 + number, -size, address=2**30 + number, allocated=level, reserved=reserved)
    return builder


def finding_of(rule: Callable[[Any], Finding | None], recorded: Any) -> Finding:
    """The finding of a rule in a recording or an analysis, which must have one."""
    finding = rule(analysis(recorded) if isinstance(recorded, TraceBuilder) else recorded)
    assert finding is not None
    return finding


def saving_of(finding: Finding) -> tuple[float, float]:
    """The least and the most that a finding saves, in milliseconds."""
    assert finding.saving_low_ms is not None
    assert finding.saving_high_ms is not None
    return finding.saving_low_ms, finding.saving_high_ms
