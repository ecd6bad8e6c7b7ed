"""Memory, on recordings with known amounts."""

import pytest

from lightning_perf.findings.memory import activations, allocator, fragmentation, memory_full, optimizer_state
from lightning_perf.findings.whole_run import find
from lightning_perf.trace.tensors import TENSORS_KEY
from tests.findings.recordings import (
    A100,
    BF16_GEMM,
    FP32_GEMM,
    Rule,
    analysis,
    finding_of,
    holding,
    saving_of,
    training,
)
from tests.support.trace_builder import TraceBuilder


def test_the_modules_to_checkpoint() -> None:
    finding = finding_of(activations, holding(parameters=8, activations=24))
    # Each of two blocks holds 12 pieces of 1 GiB. One block is computed at a time, and each may keep one as its input.
    assert "2 modules of class Block hold 24.0 GiB" in finding.evidence[1]
    assert "saves 10.0 GiB to 12.0 GiB and costs about" in finding.evidence[1]
    assert "FSDP" not in finding.action
    sharded = finding_of(activations, holding(parameters=8, activations=24).rank(0, 2))
    assert "activation_checkpointing_policy={Block}" in sharded.action
    without_stacks = holding(parameters=8, activations=24)
    without_stacks.events = [event for event in without_stacks.events if event.get("cat") != "python_function"]
    unnamed = finding_of(activations, without_stacks)
    assert len(unnamed.evidence) == 1
    assert "with_stack=True" in unnamed.action


ACTIVATIONS, STATE = {"parameters": 8, "activations": 24}, {"parameters": 8, "gradients": 8, "optimizer_state": 16}


@pytest.mark.parametrize(
    ("name", "major", "advised"),
    [
        ("NVIDIA A100-SXM4-40GB", 8, "bf16-mixed"),
        ("Tesla V100-SXM2-16GB", 7, "16-mixed"),
        ("Tesla T4", 7, "16-mixed"),
        (None, None, None),
    ],
)
def test_a_device_gets_a_precision_that_it_has(name: str | None, major: int | None, advised: str | None) -> None:
    builder = reserving(0.96, kernel=FP32_GEMM)
    (described,) = builder.top_level["deviceProperties"]
    del described["name"], described["computeMajor"]
    described.update({key: value for key, value in (("name", name), ("computeMajor", major)) if value is not None})
    action = finding_of(memory_full, builder).action
    assert ("precision=" in action) is (advised is not None)
    assert advised is None or f'"{advised}"' in action


def test_a_precision_that_is_on_is_not_advised() -> None:
    assert "precision=" in finding_of(memory_full, reserving(0.96, kernel=FP32_GEMM)).action
    assert "precision=" not in finding_of(memory_full, reserving(0.96, kernel=BF16_GEMM)).action
    assert "precision=" not in finding_of(activations, holding(**ACTIVATIONS)).action


def test_a_host_is_measured_by_its_free_memory() -> None:
    def recording(available: int) -> TraceBuilder:
        builder = training()
        lists = {"optimizer_state": [[-1, 7, 500]], "parameters": [[-1, 8, 250]]}
        builder.top_level[TENSORS_KEY] = {"start": lists, "end": lists, "available_bytes": {"-1": available}}
        builder.top_level["lightning_perf.loader"] = {"kind": "map", "batch_size": 4}
        return builder.memory(50, 10, address=9, device_type=0, device=-1)

    assert optimizer_state(analysis(recording(1000))) is not None
    assert optimizer_state(analysis(recording(1200))) is None


def test_a_device_that_is_not_scarce_has_none_of_them() -> None:
    kinds = {finding.kind for finding in find([analysis(holding(parameters=4, optimizer_state=8, activations=8))])}
    assert not kinds & {"activations", "optimizer-state", "fragmentation", "memory-full"}


def allocating(call_us: float) -> TraceBuilder:
    """A step of 1 ms in which the driver is asked for memory while the device idles."""
    builder = TraceBuilder().step(1, 0, 1000).op("aten::empty", 0, 500).runtime("cudaMalloc", 10, call_us)
    return builder.launch("gemm", call_us=500, call_duration_us=5, start_us=510, duration_us=490)


def without_cache(requests: int, kernels: int) -> TraceBuilder:
    """A step in which the device idles for some requests to the driver between its kernels."""
    builder = TraceBuilder().step(1, 0, 100 * kernels).op("aten::add_", 0, 100 * kernels)
    for at in range(0, 100 * kernels, 100):
        if at < 100 * requests:
            builder.runtime("cudaMalloc", at, 80)
        builder.launch("add", call_us=at + 80, call_duration_us=5, start_us=at + 86, duration_us=10)
    return builder


@pytest.mark.parametrize(("requests", "kernels", "uncached"), [(10, 90, True), (10, 110, False), (9, 20, False)])
def test_a_request_for_each_tensor_means_that_nothing_is_cached(requests: int, kernels: int, uncached: bool) -> None:
    finding = finding_of(allocator, without_cache(requests, kernels))
    assert ("PYTORCH_NO_CUDA_MEMORY_CACHING" in finding.action) == uncached
    shown = f"{requests} gaps between {kernels} kernels"
    assert any(shown in line for line in finding.evidence) == uncached


def reserving(share: float, *, kernel: str = BF16_GEMM, **device: int) -> TraceBuilder:
    """A device, or with `device` the host, with a share of its memory reserved."""
    reserved = round(share * A100["totalGlobalMem"])
    return training(kernel=kernel).memory(50, 1024, allocated=reserved // 2, reserved=reserved, **device)


def test_what_is_said_of_memory() -> None:
    assert saving_of(finding_of(allocator, allocating(400))) == pytest.approx((0.2, 0.4))
    full = finding_of(memory_full, reserving(0.96))
    assert "38.4 GiB of 40.0 GiB" in full.evidence[0]
    assert "fsdp" not in finding_of(optimizer_state, holding(**STATE)).action
    sharded = finding_of(optimizer_state, holding(**STATE).rank(0, 4))
    assert 'strategy="fsdp"' in sharded.action
    assert "each rank keeps 4.00 GiB of it" in sharded.evidence[1]
    for finding in (full, sharded):
        assert (finding.saving_low_ms, finding.saving_high_ms) == (None, None)


@pytest.mark.parametrize(
    ("rule", "recorded", "fires"),
    [
        (allocator, allocating(29), False),
        (allocator, allocating(31), True),
        (memory_full, reserving(0.94), False),
        (memory_full, reserving(0.96), True),
        (memory_full, reserving(0.96, device_type=0, device=-1), False),
        # Of 40 GiB, 28 are scarce. The shares are those of the bytes in tensors.
        (activations, holding(parameters=16, activations=12), True),
        (activations, holding(parameters=18, activations=10), False),
        (activations, holding(activations=27), False),
        (activations, holding(parameters=28), False),
        (optimizer_state, holding(parameters=19, optimizer_state=9), True),
        (optimizer_state, holding(parameters=20, optimizer_state=8), False),
        (optimizer_state, holding(optimizer_state=27), False),
        (optimizer_state, holding(parameters=28), False),
        (fragmentation, holding(parameters=22, fragmentation=6), True),
        (fragmentation, holding(parameters=24, fragmentation=5), False),
        (fragmentation, holding(parameters=10, fragmentation=17), False),
        (fragmentation, holding(parameters=28), False),
    ],
)
def test_a_rule_fires_from_its_threshold_on(rule: Rule, recorded: TraceBuilder, fires: bool) -> None:
    assert (rule(analysis(recorded)) is not None) == fires
