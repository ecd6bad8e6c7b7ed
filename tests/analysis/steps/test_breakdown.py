"""The step-time breakdown: known answers, a brute-force second implementation, and the real traces."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.intervals import intersect, merge, union
from lightning_perf.analysis.steps.breakdown import (
    CATEGORIES,
    DEVICE_CATEGORIES,
    HOST_CATEGORIES,
    PHASES,
    RuntimeKind,
    breakdown,
    call_kind,
    has_own_marks,
    host_phases,
    host_sets,
    is_backward_node,
    mark_phase,
    marks_by_phase,
    phases_at,
    runtime_kinds,
)
from lightning_perf.trace.columns import DeviceKind
from lightning_perf.trace.reader import read_trace
from tests.conftest import corpus_rows
from tests.support.naive_breakdown import naive_breakdown
from tests.support.trace_builder import FETCH, MAIN, TraceBuilder

TOP = [name for name, parent in CATEGORIES if parent is None]
HELPER = 2000  # another host thread


def per_step(value, name):
    return value.category(name).per_step_ns


def assert_sums(value):
    for index, step in enumerate(value.steps):
        rows = [row for row in value.categories if row.per_step_ns is not None]
        assert sum(row.per_step_ns[index] for row in rows if row.parent is None) == step.wall_ns
        for parent in {row.parent for row in rows if row.parent}:
            inside = sum(row.per_step_ns[index] for row in rows if row.parent == parent)
            assert inside == value.category(parent).per_step_ns[index]


def busy_step():
    """One step of 100 µs that holds every category; priorities decide where things overlap."""
    return (
        TraceBuilder()
        .step(1, 0, 100)
        .annotation(FETCH, 2, 10)  # 2..12, an operator inside belongs to it
        .op("aten::stack", 3, 5)
        .op("aten::conv2d", 14, 40)  # 14..54
        .runtime("cudaLaunchKernel", 16, 4, 1)  # 16..20
        .runtime("cudaMalloc", 20, 3)  # 20..23
        .runtime("cudaStreamSynchronize", 23, 30)  # 23..53
        .runtime("cudaEventQuery", 60, 2)  # 60..62
        .runtime("cudaMemcpyAsync", 13, 1, 2)  # 13..14
        .memcpy("HtoD", 25, 5, 2)  # 25..30
        .kernel("gemm", 28, 12, 1)  # 28..40 hides two of the copy
        .kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 35, 10, 3)  # 35..45, exposed 40..45
        .memset(44, 3, 4)  # 44..47, exposed 45..47
        .memcpy("DtoD", 90, 4, 5)
    )


def test_every_category_of_a_known_step():
    value = breakdown(busy_step().build())
    expected = {
        "device_compute": 12_000,
        "communication": 5_000,
        "memcpy_h2d": 3_000,
        "memcpy_d2d": 4_000,
        "memcpy": 7_000,
        "memset": 2_000,
        "input": 10_000,
        "kernel_launch": 4_000,
        "runtime_sync": 2_000 + 6_000,  # 23..25 and 47..53
        "runtime_alloc": 3_000,
        "runtime_other": 2_000 + 1_000,
        "host_compute": 2_000 + 1_000,  # 14..16 and 53..54
        "host_other": 100_000 - 12_000 - 5_000 - 7_000 - 2_000 - 10_000 - 4_000 - 14_000 - 3_000,
    }
    assert {name: per_step(value, name)[0] for name in expected} == expected
    assert_sums(value)
    assert value.category("device_compute").share == pytest.approx(0.12)
    assert value.category("device_compute").mean_ns == 12_000
    assert value.category("device_compute").sd_ns is None


def test_one_category_that_fills_a_step_has_all_of_it_and_no_more():
    value = breakdown(TraceBuilder().step(1, 0, 50).kernel("gemm", 0, 50).build())
    assert per_step(value, "device_compute") == (50_000,)
    assert sum(per_step(value, name)[0] for name in TOP) == 50_000
    assert value.category("device_compute").share == 1


def test_waiting_counts_on_the_training_thread_only():
    elsewhere = TraceBuilder().step(1, 0, 100).annotation(FETCH, 10, 20, thread=HELPER).op("aten::mm", 50, 1)
    assert per_step(breakdown(elsewhere.build()), "input") == (0,)


@pytest.mark.parametrize(
    "mark",
    [
        FETCH,
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "perf::fetch",
        "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
    ],
)
def test_every_kind_of_fetch_mark_is_waiting(mark):
    value = breakdown(TraceBuilder().step(1, 0, 100).annotation(mark, 10, 20).build())
    assert per_step(value, "input") == (20_000,)


def test_without_a_device_its_rows_are_absent_and_not_zero():
    value = breakdown(TraceBuilder().step(1, 0, 100).op("aten::mm", 10, 20).build())
    assert not value.has_device
    for name in ("device_compute", "communication", "memcpy", "memcpy_h2d", "memset"):
        row = value.category(name)
        assert (row.per_step_ns, row.mean_ns, row.share) == (None, None, None)
    assert per_step(value, "host_compute") == (20_000,)
    assert_sums(value)


def test_a_truncated_file_gets_no_shares(tmp_path):
    text = (busy_step().write(tmp_path / "whole.json")).read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: text.index('"Memset')])
    trace = read_trace(cut)
    assert trace.problems.truncated
    value = breakdown(trace)
    assert value.truncated
    assert value.category("input").per_step_ns == (10_000,)
    assert all(row.share is None for row in value.categories)


def test_outliers_are_named_with_the_category_that_made_them():
    builder = TraceBuilder()
    for n in range(8):
        slow = 60 if n == 5 else 0
        start = n * 300
        builder.step(n, start, 100 + n % 2 + slow).op("aten::mm", start, 30).annotation(FETCH, start + 40, 20 + slow)
    value = breakdown(builder.build())
    (outlier,) = value.outliers
    assert (outlier.number, outlier.category, outlier.wall_ns) == (5, "input", 161_000)
    assert outlier.excess_ns == pytest.approx(60_000, abs=1000)


def test_mean_and_spread_are_over_the_steps():
    builder = TraceBuilder()
    for n, length in enumerate((10, 20, 60)):
        builder.step(n, n * 100, 80).op("aten::mm", n * 100, length)
    row = breakdown(builder.build()).category("host_compute")
    assert (row.mean_ns, row.min_ns, row.max_ns) == (30_000, 10_000, 60_000)
    assert row.sd_ns == pytest.approx(26_457.5, abs=0.1)


def test_an_unknown_category_is_refused_by_name():
    with pytest.raises(KeyError, match="no category 'gpu'"):
        breakdown(busy_step().build()).category("gpu")


# A second implementation: look at every single nanosecond.

KINDS = [
    ("device_compute", lambda b, s, d: b.kernel("gemm", s, d)),
    ("communication", lambda b, s, d: b.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", s, d, stream=9)),
    ("memcpy_h2d", lambda b, s, d: b.memcpy("HtoD", s, d)),
    ("memcpy_d2h", lambda b, s, d: b.memcpy("DtoH", s, d)),
    ("memcpy_d2d", lambda b, s, d: b.memcpy("DtoD", s, d)),
    ("memcpy_p2p", lambda b, s, d: b.memcpy("PtoP", s, d)),
    ("memcpy_unknown", lambda b, s, d: b.device("gpu_memcpy", "Memcpy", s, d)),
    ("memset", lambda b, s, d: b.memset(s, d)),
    ("input", lambda b, s, d: b.annotation("perf::fetch", s, d)),
    ("kernel_launch", lambda b, s, d: b.runtime("cudaLaunchKernel", s, d, thread=HELPER)),
    ("runtime_sync", lambda b, s, d: b.runtime("cudaDeviceSynchronize", s, d)),
    ("runtime_alloc", lambda b, s, d: b.runtime("cudaFree", s, d)),
    ("runtime_other", lambda b, s, d: b.runtime("cudaEventRecord", s, d)),
    ("host_compute", lambda b, s, d: b.op("aten::add", s, d, thread=HELPER)),
]
events = st.lists(st.tuples(st.sampled_from(range(len(KINDS))), st.integers(0, 70), st.integers(0, 30)), max_size=14)
marks = st.lists(st.integers(1, 25), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None)
@given(events, marks)
def test_it_equals_looking_at_every_nanosecond(found, lengths):
    builder, start = TraceBuilder(), 5
    for number, length in enumerate(lengths):
        builder.step(number, start / 1000, length / 1000, thread=MAIN)
        start += length + number % 2
    for kind, begin, length in found:
        KINDS[kind][1](builder, begin / 1000, length / 1000)
    trace = builder.build()
    value = breakdown(trace)
    assert_sums(value)
    expected = {name: [] for name, _ in KINDS} | {"host_other": []}
    for begin, end in zip(trace.steps.start_ns.tolist(), trace.steps.end_ns.tolist(), strict=True):
        counts = dict.fromkeys(expected, 0)
        for t in range(begin, end):
            active = [kind for kind, s, d in found if s <= t < s + d]
            counts[KINDS[min(active)][0] if active else "host_other"] += 1
        for name, count in counts.items():
            expected[name].append(count)
    for name, times in expected.items():
        found_times = per_step(value, name)
        assert times == ([0] * len(times) if found_times is None else list(found_times)), name


# Without step marks the whole recording is the step. The reference takes the host's part of it; ours begins with the
# first event, which in this file (two events in all) is the one kernel, before the host's only operator.
BEGINS_WITH_THE_DEVICE = "hta/large_integer_trace/rank-70.Mar_25_20_48_12.2861.pt.trace.409ef99.json.gz"


@pytest.mark.corpus
def test_device_rows_equal_an_independent_reading(trace, row):
    value = breakdown(trace)
    assert_sums(value)
    base = trace.metadata.base_time_ns  # the reference leaves out the epoch that the file gives apart
    windows = [
        (start - base, end - base)
        for start, end in zip(trace.steps.start_ns.tolist(), trace.steps.end_ns.tolist(), strict=True)
    ]
    if row["file"] == BEGINS_WITH_THE_DEVICE:
        ((_, start, end),) = row["exact"]["step_windows_ns"]
        assert windows == [(start - 100_000, end)]
        assert per_step(value, "communication") == (row["device_sets_ns"]["busy_ns"],)
        return
    known = [(start, end) for _, start, end in row["exact"]["step_windows_ns"]]
    assert windows[: len(known)] == known
    assert not trace.steps.complete[len(known) :].any()  # a step cut off by the end: the reference drops it
    for index, expected in enumerate(row["exact"]["per_step_ns"]):
        ours = {r.name: (r.per_step_ns or (0,) * len(value.steps))[index] for r in value.categories}
        assert ours["device_compute"] + ours["communication"] == expected["Kernel"]
        assert ours["memcpy"] == expected["Memcpy"]
        assert ours["memset"] == expected["Memset"]


# The sweep takes seconds for each of the large ones; of those, the one with a list at the top and work that was queued
# before its first step.
SWEPT = [row for row in corpus_rows() if row["events"] < 45_000 or "2d19c63" in row["file"]]


@pytest.mark.corpus
@pytest.mark.parametrize("row", SWEPT, ids=lambda row: row["file"].split("/", 1)[1])
def test_every_category_of_real_steps_equals_a_sweep_over_the_raw_events(row, corpus):
    path = corpus / "traces" / row["file"]
    trace = read_trace(path)
    value = breakdown(trace)
    windows = zip(trace.steps.start_ns.tolist(), trace.steps.end_ns.tolist(), strict=True)
    ours = [
        (start, end, {r.name: r.per_step_ns[index] for r in value.categories if r.per_step_ns is not None})
        for index, (start, end) in enumerate(windows)
    ]
    expected = naive_breakdown(path)
    assert [window[:2] for window in ours] == [window[:2] for window in expected]
    for (_, _, found), (_, _, times) in zip(ours, expected, strict=True):
        assert {name: found.get(name, 0) for name in times} == times


@pytest.mark.corpus
def test_communication_by_kernel_name_equals_an_independent_reading(trace, row):
    device, expected = trace.device, row["device_sets_ns"]
    if expected is None:
        assert not len(device)
        return

    def busy(rows):
        return merge(device.start_ns[rows], device.end_ns[rows])

    # PyTorch's symmetric memory has all-reduce kernels of its own; the reference knows NCCL's alone.
    nccl = trace.names_where(lambda name: "nccl" in name.lower())[device.name] & device.is_collective
    ours = {trace.names[code] for code in device.name[device.is_collective & ~nccl].tolist()}
    assert all("multimem_all_reduce" in name for name in ours)
    compute, communication = busy(device.is_compute | (device.is_collective & ~nccl)), busy(nccl)
    assert communication.length_ns == expected["comm_ns"]
    assert compute.length_ns == expected["compute_ns"]
    assert intersect(compute, communication).length_ns == expected["overlap_comp_comm_ns"]
    assert union(compute, communication, busy(device.kind >= DeviceKind.H2D)).length_ns == expected["busy_ns"]


def test_every_category_without_parts_is_filled_by_one_set_in_order():
    parents = {parent for _, parent in CATEGORIES}
    assert [name for name, _ in CATEGORIES if name not in parents] == [*DEVICE_CATEGORIES, *HOST_CATEGORIES]
    assert (*host_sets(TraceBuilder().step(1, 0, 10).build()), "host_other") == HOST_CATEGORIES
    assert list(DEVICE_CATEGORIES.values()) == list(DeviceKind)


def test_host_sets_are_merged_over_threads():
    trace = TraceBuilder().step(1, 0, 10).op("a", 0, 2).op("b", 1, 3, thread=2000).op("c", 6, 1).build()
    active = host_sets(trace)["host_compute"]
    assert list(zip(active.start_ns.tolist(), active.end_ns.tolist(), strict=True)) == [(0, 4000), (6000, 7000)]


CALLS = {
    "SYNC": (
        "cudaDeviceSynchronize", "cudaStreamSynchronize", "cuCtxSynchronize", "hipEventSynchronize", "cudaMemcpy",
        "hipMemcpyWithStream", "urEventWait", "zeCommandQueueSynchronize",
    ),
    "ALLOC": (
        "cudaMalloc", "cudaMallocAsync", "cudaFree", "cudaHostAlloc", "cuMemAlloc_v2", "cuMemSetAccess",
        "hipHostMalloc", "hipExtMallocWithFlags", "urUSMDeviceAlloc", "zeMemFree",
    ),
    "OTHER": (
        "cudaStreamWaitEvent", "cudaEventQuery", "cudaMemcpyAsync", "cuMemcpyDtoDAsync", "cudaGetDevice",
        "cudaMemcpyPeer", "urEnqueueEventsWait",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CALLS)
def test_calls_by_name(kind):
    assert {name: call_kind(name) for name in CALLS[kind]} == dict.fromkeys(CALLS[kind], RuntimeKind[kind])


def test_what_starts_a_kernel_is_a_launch_whatever_its_name():
    builder = TraceBuilder().step(1, 0, 100)
    builder.launch("k", call="hipNewLaunch", call_us=1, call_duration_us=2, start_us=9, duration_us=5)
    builder.runtime("cudaMemcpyAsync", 20, 2, 7).memcpy("HtoD", 25, 5, 7).runtime("cudaStreamSynchronize", 40, 5)
    kinds = runtime_kinds(builder.build()).tolist()
    assert kinds == [RuntimeKind.LAUNCH, RuntimeKind.OTHER, RuntimeKind.SYNC]


def test_a_copy_to_pageable_memory_waits_whatever_its_call_is_named():
    builder = TraceBuilder().step(1, 0, 100)
    for number, kind in enumerate(("Device -> Pageable", "Device -> Pinned", "Pageable -> Device"), 1):
        builder.runtime("cudaMemcpyAsync", 10 * number, 5, number)
        builder.device("gpu_memcpy", f"Memcpy DtoH ({kind})", 10 * number + 2, 1, correlation=number)
    assert runtime_kinds(builder.build()).tolist() == [RuntimeKind.SYNC, RuntimeKind.OTHER, RuntimeKind.OTHER]


def test_a_trace_without_calls():
    assert len(runtime_kinds(TraceBuilder().op("aten::mm", 0, 5).build())) == 0


NODE = "autograd::engine::evaluate_function: MulBackward0"
AUTOGRAD = 2000


def spans(trace, phase):
    found = host_phases(trace)[phase]
    return list(zip((found.start_ns // 1000).tolist(), (found.end_ns // 1000).tolist(), strict=True))


def test_a_pause_of_the_engine_is_backward_unless_the_training_thread_goes_on():
    builder = TraceBuilder().step(1, 0, 100)
    for start in (10, 20, 50):
        builder.op(NODE, start, 5, thread=AUTOGRAD)
    assert spans(builder.build(), "backward") == [(10, 55)]
    assert spans(builder.op("aten::mm", 30, 5).build(), "backward") == [(10, 25), (50, 55)]


def test_the_forward_ends_where_the_last_backward_of_its_step_begins():
    builder = TraceBuilder().step(1, 0, 100).step(2, 100, 100)
    for start in (0, 100):
        builder.op("aten::mm", start + 10, 10).op("aten::add", start + 25, 5)
        builder.op(NODE, start + 40, 20, thread=AUTOGRAD)
        builder.op("aten::norm", start + 70, 5)
    assert spans(builder.build(), "forward") == [(10, 30), (110, 130)]


def test_a_loader_on_its_own_thread_makes_nobody_wait():
    builder = TraceBuilder().step(1, 0, 100).annotation(FETCH, 10, 30, thread=3000).annotation(FETCH, 50, 5)
    assert spans(builder.build(), "fetch") == [(50, 55)]


def test_zeroing_gradients_in_a_closure_is_the_optimizers():
    builder = TraceBuilder().step(1, 0, 100).annotation("Optimizer.step#SGD.step", 5, 90).op("aten::mm", 10, 10)
    builder.annotation("Optimizer.zero_grad#SGD.zero_grad", 20, 10).op("aten::zero_", 21, 8).op("aten::mean", 32, 3)
    trace = builder.op(NODE, 40, 20, thread=AUTOGRAD).op("aten::add_", 70, 5).build()
    assert spans(trace, "forward") == [(10, 20), (32, 35)]
    assert spans(trace, "optimizer") == [(5, 10), (20, 32), (35, 40), (60, 95)]


def test_no_two_phases_overlap():
    builder = TraceBuilder().step(1, 0, 100).annotation("perf::optimizer", 0, 100)
    builder.annotation("perf::forward", 10, 30).annotation("perf::transfer", 20, 5).annotation("perf::backward", 35, 30)
    trace = builder.annotation("perf::validation", 60, 10).build()
    assert spans(trace, "transfer") == [(20, 25)]
    assert spans(trace, "forward") == [(10, 20), (25, 35)]
    assert spans(trace, "backward") == [(35, 60)]
    assert spans(trace, "validation") == [(60, 70)]
    assert spans(trace, "optimizer") == [(0, 10), (70, 100)]


def test_the_phase_at_an_instant():
    trace = (
        TraceBuilder().step(1, 0, 100).annotation("perf::forward", 10, 30).annotation("perf::transfer", 20, 5).build()
    )
    instants = np.array([5, 10, 20, 25, 40]) * 1000
    found = [PHASES[code] for code in phases_at(trace, instants).tolist()]
    assert found == ["other", "forward", "transfer", "forward", "other"]


@pytest.mark.parametrize("phase", PHASES)
def test_our_own_ranges_are_named_after_the_phases(phase):
    assert mark_phase(f"perf::{phase}") == phase
    assert mark_phase(f"perf::{phase}#3") == phase


NODES = {
    "autograd::engine::evaluate_function: AddmmBackward0", "CudnnConvolutionBackward", "CompiledFunctionBackward",
    "struct torch::autograd::CopyBackwards", "torch::autograd::AccumulateGrad",
}  # fmt: skip


def test_nodes_of_the_backward_graph():
    assert {name for name in (*NODES, "aten::convolution_backward", "aten::mm") if is_backward_node(name)} == NODES


def test_our_ranges_silence_those_of_strangers():
    builder = TraceBuilder().annotation(FETCH, 0, 10).annotation("Optimizer.step#SGD.step", 50, 10)
    trace = builder.build()
    assert not has_own_marks(trace)
    assert set(marks_by_phase(trace)) == {"fetch", "optimizer"}
    trace = builder.annotation("perf::fetch", 0, 12).build()
    assert has_own_marks(trace)
    assert {name: marks.end_ns.tolist() for name, marks in marks_by_phase(trace).items()} == {"fetch": [12_000]}
