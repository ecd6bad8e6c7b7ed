"""Phase × category: known answers, a brute-force second implementation, and agreement with the breakdown."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.steps.breakdown import PHASES, breakdown
from lightning_perf.analysis.steps.phases import LEAVES, phase_times, phases
from tests.support.trace_builder import FETCH, TraceBuilder

AUTOGRAD = 2000


def cell(trace, phase, category, step=0):
    return int(phase_times(trace)[step, PHASES.index(phase), LEAVES.index(category)])


def totals(trace, step=0):
    found = phase_times(trace)[step].sum(axis=1).tolist()
    return {name: time for name, time in zip(PHASES, found, strict=True) if time}


def own_step():
    return (
        TraceBuilder()
        .step(1, 0, 100)
        .annotation("perf::fetch", 0, 10)
        .annotation("perf::transfer", 10, 5)
        .annotation("perf::forward", 15, 25)
        .op("aten::mm", 16, 10)
        .annotation("perf::backward", 40, 30)
        .annotation("perf::optimizer", 75, 15)
    )


def test_our_own_ranges():
    trace = own_step().build()
    expected = {"fetch": 10, "transfer": 5, "forward": 25, "backward": 30, "optimizer": 15, "other": 15}
    assert totals(trace) == {name: 1000 * us for name, us in expected.items()}
    assert cell(trace, "forward", "host_compute") == 10_000
    assert cell(trace, "forward", "host_other") == 15_000
    assert phases(trace).source == "own"


def test_device_work_belongs_to_the_phase_that_launched_it():
    builder = own_step().launch("gemm", call_us=18, call_duration_us=2, start_us=50, duration_us=10)
    trace = builder.launch("grad", call_us=45, call_duration_us=2, start_us=60, duration_us=30).build()
    assert cell(trace, "forward", "device_compute") == 10_000  # ran while the host was in backward
    assert cell(trace, "backward", "device_compute") == 30_000
    assert cell(trace, "backward", "kernel_launch") == 2_000


def test_work_of_two_phases_at_once_counts_once_for_the_earlier_phase():
    builder = own_step().launch("gemm", call_us=18, call_duration_us=2, start_us=50, duration_us=10)
    trace = builder.launch("grad", call_us=45, call_duration_us=2, start_us=55, duration_us=10, stream=9).build()
    assert cell(trace, "forward", "device_compute") == 10_000
    assert cell(trace, "backward", "device_compute") == 5_000


def test_work_without_a_launch_is_other():
    trace = own_step().kernel("graph_kernel", 30, 10).build()
    assert cell(trace, "other", "device_compute") == 10_000


def foreign_step():
    """A plain training loop as `torch.profiler` records it: the backward runs on the engine's own thread."""
    return (
        TraceBuilder()
        .step(1, 0, 100)
        .annotation(FETCH, 2, 8)  # 2..10
        .op("aten::to", 12, 3)  # the forward begins
        .op("aten::conv2d", 16, 10)
        .op("aten::loss", 30, 5)  # ... and ends at 35
        .op("autograd::engine::evaluate_function: LossBackward0", 40, 5, thread=AUTOGRAD)
        .op("aten::loss_backward", 41, 3, thread=AUTOGRAD)
        .op("autograd::engine::evaluate_function: ConvolutionBackward0", 50, 10, thread=AUTOGRAD)  # pause 45..50
        .op("aten::norm", 65, 5)  # between backward and optimizer
        .annotation("Optimizer.step#SGD.step", 72, 10)
        .op("aten::_foreach_add_", 73, 8)
        .annotation("Optimizer.zero_grad#SGD.zero_grad", 84, 2)
    )


def test_a_recording_without_our_ranges():
    trace = foreign_step().build()
    expected = {"fetch": 8, "forward": 23, "backward": 20, "optimizer": 12, "other": 37}
    assert totals(trace) == {name: 1000 * us for name, us in expected.items()}
    assert cell(trace, "other", "host_compute") == 5_000
    assert phases(trace).source == "foreign"


def test_every_micro_batch_has_its_forward():
    builder = TraceBuilder().step(1, 0, 200)
    for start in (10, 60):
        builder.op("aten::conv2d", start, 10)
        builder.op("autograd::engine::evaluate_function: ConvolutionBackward0", start + 20, 15, thread=AUTOGRAD)
    trace = builder.annotation("Optimizer.step#SGD.step", 120, 10).build()
    assert totals(trace) == {"forward": 20_000, "backward": 30_000, "optimizer": 10_000, "other": 140_000}


def test_inference_is_all_forward():
    trace = TraceBuilder().step(1, 0, 100).op("aten::mm", 10, 20).op("aten::relu", 40, 10).build()
    assert totals(trace) == {"forward": 40_000, "other": 60_000}


@pytest.mark.parametrize(
    ("mark", "phase"),
    [
        ("[pl][profile][Strategy]SingleDeviceStrategy.training_step", "forward"),
        ("[pl][profile][Strategy]SingleDeviceStrategy.batch_to_device", "transfer"),
        ("[pl][profile][Strategy]DDPStrategy.backward", "backward"),
        ("[pl][profile][LightningModule]Net.optimizer_step", "optimizer"),
        ("[pl][profile][Strategy]SingleDeviceStrategy.validation_step", "validation"),
        ("[pl][profile][_EvaluationLoop].val_next", "validation"),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", "fetch"),
        ("[pl][profile]save_checkpoint", "checkpoint"),
        ("[pl][profile]run_training_batch", None),
        ("[pl][profile][Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end", "checkpoint"),
        ("[pl][profile][Callback]TQDMProgressBar.on_train_batch_end", None),
        ("ProfilerStep#3", None),
        ("perf::nonsense", None),
    ],
)
def test_lightnings_marks(mark, phase):
    trace = TraceBuilder().step(1, 0, 100).annotation(mark, 10, 20).build()
    assert totals(trace) == ({phase: 20_000, "other": 80_000} if phase else {"other": 100_000})


def test_without_a_device_its_cells_are_absent():
    row = phases(own_step().build()).phase("forward")
    assert row.category_mean_ns[LEAVES.index("device_compute")] is None
    assert row.category_mean_ns[LEAVES.index("host_compute")] == 10_000


ranges = st.lists(st.tuples(st.sampled_from(PHASES[:7]), st.integers(0, 60), st.integers(0, 25)), max_size=6)
kernels = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 25)), max_size=6)
INNERMOST_FIRST = ("checkpoint", "validation", "transfer", "fetch", "backward", "forward", "optimizer")


@settings(max_examples=60, deadline=None)
@given(ranges, kernels, st.lists(st.integers(5, 40), min_size=1, max_size=3))
def test_it_equals_looking_at_every_nanosecond(marks, launches, lengths):
    builder, start = TraceBuilder().annotation("perf::other", 0, 0), 3
    for number, length in enumerate(lengths):
        builder.step(number, start / 1000, length / 1000)
        start += length
    for name, begin, length in marks:
        builder.annotation(f"perf::{name}", begin / 1000, length / 1000)
    for i, (call, begin, length) in enumerate(launches):
        builder.runtime("cudaLaunchKernel", call / 1000, 0.001, 100 + i)
        builder.kernel("gemm", (call + begin) / 1000, length / 1000, 100 + i)
    trace = builder.build()

    def phase_at(t):
        inside = {name for name, begin, length in marks if begin <= t < begin + length}
        return next((name for name in INNERMOST_FIRST if name in inside), "other")

    times = phase_times(trace)
    steps = list(zip(trace.steps.start_ns.tolist(), trace.steps.end_ns.tolist(), strict=True))
    expected = np.zeros((len(steps), len(PHASES)), dtype=np.int64)
    for i, (begin, end) in enumerate(steps):
        for t in range(begin, end):
            running = {phase_at(c) for c, s, d in launches if c + s <= t < c + s + d}
            phase = min(running, key=PHASES.index) if running else phase_at(t)
            expected[i, PHASES.index(phase)] += 1
    assert times.sum(axis=2).tolist() == expected.tolist()
    for column, name in enumerate(LEAVES):
        row = breakdown(trace).category(name).per_step_ns
        assert times[:, :, column].sum(axis=1).tolist() == list(row or [0] * len(steps)), name


@pytest.mark.corpus
def test_columns_sum_to_the_breakdown_on_real_traces(trace):
    times, value = phase_times(trace), breakdown(trace)
    assert times.sum(axis=(1, 2)).tolist() == [step.wall_ns for step in value.steps]
    for column, name in enumerate(LEAVES):
        expected = value.category(name).per_step_ns or (0,) * len(value.steps)
        assert tuple(times[:, :, column].sum(axis=1).tolist()) == expected, name
