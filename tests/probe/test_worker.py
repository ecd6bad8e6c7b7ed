"""What the worker process measures, run in this process, and a whole probe in a worker process."""

import math
import mmap
import multiprocessing
import subprocess
import sys
import time
from itertools import combinations
from random import Random

import msgspec
import pytest
import torch
from msgspec.structs import asdict, replace

from lightning_perf.analysis.model.operators import OperatorCalls
from lightning_perf.errors import TraceError
from lightning_perf.machine.page_faults import count_page_faults
from lightning_perf.probe.plan import plan_probe, without_busy_cores
from lightning_perf.probe.replay.measure import count_faults
from lightning_perf.probe.replay.messages import CURRENT, Measured, OptimizerTask, Setting, Times
from lightning_perf.probe.replay.rounds import (
    BATCH_ROUNDS,
    CALLING_NS,
    COVERAGE,
    OptimizerTimer,
    sample_sizes,
    select_calls,
)
from lightning_perf.probe.replay.worker import MOST_BYTES, time_transfer
from lightning_perf.probe.replay.worker import measure as measure_rounds
from lightning_perf.probe.run import OthersWatch, ProbeWorker, build_probe, probe_trace
from lightning_perf.trace.description import BATCH_KEY, Batch
from tests.findings.host_recordings import convolving, on_processor
from tests.probe.recorded import NETWORKS, calls_of, recorded_training, task_of
from tests.support.trace_builder import FETCH, TraceBuilder

SETTINGS = (
    Setting(CURRENT),
    Setting("bf16", "bfloat16"),
    Setting("channels-last", channels_last=True),
    Setting("threads", threads=2),
    Setting("batch", batch=2),
)


@pytest.fixture(autouse=True)
def _same_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def measure(calls: OperatorCalls, **changes: object) -> Measured:
    """What the worker measures, in more time than the most rounds take, so that a busy machine changes nothing."""
    return measure_rounds(task_of(calls, **{"settings": SETTINGS, "seconds": 120.0, **changes}))[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_setting_is_measured_in_both_passes(name: str) -> None:
    calls = calls_of(name)
    measured = measure(calls)
    assert not measured.skipped
    found = {(one.call, one.setting): one for one in measured.times}
    places = {place for place, _ in found}
    assert calls.share_of(places) > 0.5
    for (place, setting), one in found.items():
        assert setting in {setting.name for setting in SETTINGS}
        assert len(one.forward_ns) == len(one.backward_ns) >= (2 if setting == CURRENT else 1)
        assert min(one.forward_ns) > 0
        assert (max(one.backward_ns) > 0) == calls.calls[place].has_backward, calls.calls[place]
    assert {setting for _, setting in found} == {setting.name for setting in SETTINGS}


def test_a_call_that_fails_is_left_out_and_memory_beyond_the_limit_is_shared() -> None:
    calls = calls_of("convolutions")
    broken = [replace(call, name="my::op") if call.name == "aten::conv2d" else call for call in calls.calls]
    measured = measure(replace(calls, calls=tuple(broken)), memory_bytes=1000, seconds=0.2)
    assert "it is no operator of PyTorch" in measured.skipped.values()
    assert measured.times


PAGES = 300


class Touching:
    """Calls that request fresh memory: the forward pass some pages, and the backward pass twice as many."""

    def __init__(self, *, has_backward: bool) -> None:
        self.has_backward, self.bound = has_backward, self

    def enter(self) -> list[int]:
        return [PAGES]

    def call(self, pages: list[int]) -> torch.Tensor:
        with mmap.mmap(-1, pages[0] * mmap.PAGESIZE) as fresh:
            fresh[:: mmap.PAGESIZE] = bytes(pages[0])
        return torch.zeros(1)

    def outputs(self, result: torch.Tensor) -> list[torch.Tensor]:
        return [result]

    def gradients(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return outputs

    def backward(self, *_: object) -> None:
        self.call([2 * PAGES])


@pytest.mark.skipif(count_page_faults() is None, reason="this system does not count page faults")
def test_page_faults_of_both_passes_are_counted() -> None:
    calls = {3: Touching(has_backward=False), 5: Touching(has_backward=True)}
    counted = count_faults(calls, Setting(CURRENT), 1 << 20)  # type: ignore[arg-type]
    assert PAGES <= counted[3] < 1.5 * PAGES
    assert 3 * PAGES <= counted[5] < 3.5 * PAGES


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_optimizers_are_measured_in_both_implementations(name: str) -> None:
    measured = measure(calls_of("convolutions"), optimizer=OptimizerTask(name, "loop"), seconds=0.2)
    assert set(measured.optimizer) == {"loop", "fused", "threads"}
    scarce = measure(calls_of("convolutions"), optimizer=OptimizerTask(name, "loop"), memory_bytes=10, seconds=0.1)
    assert not scarce.optimizer


def test_the_variants_of_an_optimizer_alternate() -> None:
    optimizer = OptimizerTask("AdamW", "foreach")
    timer = OptimizerTimer(task_of(calls_of("convolutions"), settings=SETTINGS, optimizer=optimizer))
    for _ in range(7):
        timer.step_next()
    assert {name: len(times) for name, times in timer.times_ns().items()} == {"foreach": 3, "fused": 2, "threads": 2}
    assert min(min(times) for times in timer.times_ns().values()) > 0


@pytest.mark.parametrize("seed", range(20))
def test_sampled_parameters_keep_the_share_of_large_ones(seed: int) -> None:
    random = Random(seed)
    sizes = [round(10 ** random.uniform(0, 5)) for _ in range(random.randint(1, 300))]
    whole, large = sum(sizes) // 3, 20_000
    sampled = sample_sizes(sizes, whole, large)
    large_sum = sum(size for size in sizes if size >= large)
    assert all(size <= large for size in sampled) or not large_sum
    number = sum(size == large for size in sampled)
    if large_sum:
        # The number of large ones is rounded, and the small ones follow.
        assert number >= 1
        expected = number * large / large_sum
        assert abs(number * large - whole * large_sum / sum(sizes)) <= max(large, 1)
    else:
        expected = whole / sum(sizes)
    small = [size for size in sizes if size < large]
    sampled_small = sum(sampled) - number * large * (large_sum > 0)
    assert sampled_small <= expected * sum(small) + 1
    assert sampled_small >= expected * sum(small) - len(small) or expected >= 1
    assert sample_sizes(sizes, sum(sizes), large) == sizes


def test_a_larger_batch_is_measured_less_often() -> None:
    measured = measure(calls_of("convolutions"), settings=(Setting(CURRENT), Setting("batch", batch=2)))
    rounds = {one.setting: len(one.forward_ns) for one in measured.times}
    assert rounds[CURRENT] > BATCH_ROUNDS
    assert rounds["batch"] <= BATCH_ROUNDS


@pytest.mark.parametrize("seed", range(20))
def test_the_chosen_calls_cover_almost_as_much_as_the_best_choice(seed: int) -> None:
    random = Random(seed)
    template = calls_of("convolutions").calls[0]
    chances = [(random.randint(1, 6), random.randrange(20_000, 2_000_000, 1000)) for _ in range(9)]
    made = tuple(replace(template, calls=n, forward_ns=n * each, backward_ns=0) for n, each in chances)
    calls = replace(calls_of("convolutions"), calls=made)
    budget = sum(each for _, each in chances) / 2
    chosen = select_calls(calls, range(9), budget)
    assert sum(chances[place][1] for place in chosen) <= budget
    best = max(
        calls.share_of(places)
        for size in range(10)
        for places in combinations(range(9), size)
        if sum(chances[place][1] + CALLING_NS for place in places) <= budget
    )
    largest = max(calls.share_of([place]) for place in range(9))
    assert calls.share_of(chosen) >= min(best, COVERAGE) - largest  # the bound of Dantzig's greedy choice
    assert calls.share_of(select_calls(calls, range(9), math.inf)) >= COVERAGE


def test_a_busy_core_is_not_probed() -> None:
    plan = plan_probe(recorded_training("convolutions"), 1.0, has_cuda=False)
    assert plan is not None
    settings = (Setting(CURRENT), Setting("threads", threads=4))
    plan = replace(plan, task=msgspec.structs.replace(plan.task, settings=settings))
    assert without_busy_cores(plan, 0.2).task.settings == settings
    assert without_busy_cores(plan, 2.0).task.settings == settings[:1]


def test_the_work_of_other_programs_is_counted_without_our_own() -> None:
    watch = OthersWatch()
    began = time.perf_counter()
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(time.process_time())"
    theirs = float(subprocess.run([sys.executable, "-c", spin], capture_output=True, check=True).stdout)
    elapsed = time.perf_counter() - began
    assert watch.busy_cores(0.0) * elapsed >= 0.8 * theirs
    assert watch.busy_cores(theirs) <= watch.busy_cores(0.0) - 0.5 * theirs / elapsed


def test_a_probe_in_a_worker_process_leaves_this_one_alone() -> None:
    trace = recorded_training("convolutions")
    torch.manual_seed(7)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with ProbeWorker() as worker:
        probe = probe_trace(trace, worker, 120.0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    names = {change.name for change in probe.changes}
    assert {"channels-last", "batch", "fused-optimizer"} <= names
    assert 0 < probe.covered_ns <= probe.operator_ns <= probe.step_ns
    for change in probe.changes:
        assert change.low_ns <= change.saving_ns <= change.high_ns
        assert change.rounds >= 1
    assert {call.name for call in probe.calls} & {"conv2d", "linear", "batch_norm"}


@pytest.mark.parametrize(
    ("in_the_probe", "lacking_ns"), [(0.0, 3e6), (1400.0, 1.6e6), (2100.0, 0.0), (5000.0, 0.0), (None, 0.0)]
)
def test_page_faults_that_the_probe_lacks(in_the_probe: float | None, lacking_ns: float) -> None:
    trace = recorded_training("convolutions")
    plan = plan_probe(trace, 1.0, has_cuda=False)
    assert plan is not None
    plan = replace(plan, usual_step_ns=10e6, page_faults=3000.0, page_fault_ns=1000.0)
    times = tuple(
        Times(place, setting.name, (1e5, 1e5), (1e5, 1e5))
        for place in range(len(plan.calls.calls))
        for setting in plan.task.settings
    )
    probe = build_probe(trace, plan, Measured(times, {}, {}, None, 1.0, "CPU", in_the_probe), 1.0)
    assert probe.changes
    assert [change.faults_ns for change in probe.changes] == pytest.approx([lacking_ns] * len(probe.changes))
    assert all(change.low_ns <= change.saving_ns - lacking_ns / 2 for change in probe.changes)
    assert all(change.high_ns >= change.saving_ns + lacking_ns / 2 for change in probe.changes)


@pytest.mark.parametrize("name", ["convolutions", "attention", "standardized", "recurrent"])
def test_the_batch_size_is_that_of_the_recording(name: str) -> None:
    plan = plan_probe(recorded_training(name), 1.0, has_cuda=False)
    assert plan is not None
    assert plan.task.batch_size == 6


def test_a_misread_batch_size_gives_no_larger_batch() -> None:
    for batch_size, is_probed in ((6, True), (1, False), (5, False)):
        made = task_of(calls_of("convolutions"), settings=SETTINGS, batch_size=batch_size)
        assert ("batch" in [setting.name for setting in made.settings]) == is_probed


def test_a_recording_without_shapes_cannot_be_probed() -> None:
    trace = TraceBuilder().step(1, 0, 100).op("aten::mm", 10, 50).build()
    assert plan_probe(trace, 1.0, has_cuda=False) is None
    with ProbeWorker() as worker, pytest.raises(TraceError, match="record_shapes=True"):
        probe_trace(trace, worker, 1.0)


def test_a_recording_of_a_device_needs_one() -> None:
    trace = (
        TraceBuilder()
        .step(1, 0, 100)
        .op("aten::mm", 10, 50, types=["float", "float"], dims=[[4, 4], [4, 4]])
        .launch("gemm", call_us=12, call_duration_us=5, start_us=30, duration_us=40)
        .build()
    )
    assert plan_probe(trace, 1.0, has_cuda=False) is None
    plan = plan_probe(trace, 1.0, has_cuda=True)
    assert plan is not None
    assert [setting.name for setting in plan.task.settings] == [CURRENT, "bf16", "fp16", "tf32"]


SENT = Batch(tensors=3, tensor_bytes=300_000, objects=5, object_bytes=10)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="it needs fork")
def test_times_of_sent_batches() -> None:
    times = time_transfer(SENT, 5.0)
    assert times is not None
    assert len(times.sent_ns) > 1
    assert len(times.received_ns) > 1
    assert min(times.received_ns) > 0


def test_a_batch_of_gigabytes_is_not_sent() -> None:
    assert time_transfer(Batch(1, MOST_BYTES + 1, 0, 0), 5.0) is None


@pytest.mark.parametrize(("fetch_us", "sent"), [(400, False), (600, True)])
def test_a_batch_is_sent_if_the_training_waits_for_batches(fetch_us: float, sent: bool) -> None:
    builder = convolving(on_processor())
    builder.top_level[BATCH_KEY] = asdict(SENT)
    for step in range(3):
        builder.annotation(FETCH, step * 10_000 + 100, fetch_us)
    plan = plan_probe(builder.build(), 5.0, has_cuda=False)
    assert plan is not None
    assert plan.task.batch == (SENT if sent else None)
