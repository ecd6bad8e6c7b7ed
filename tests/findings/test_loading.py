"""Waits for data and copies to the device, on recordings with known times."""

from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.loading import advised_workers, input_bound, pageable_copies, worker_saving
from lightning_perf.run_files.fit.memory_growth import WorkerGrowth
from lightning_perf.run_files.probe import Probe, ProbedTransfer
from lightning_perf.trace.description import BATCH_KEY, LOADER_KEY, PROCESSOR_KEY
from tests.findings.host_recordings import convolving, on_processor
from tests.findings.recordings import A100, BF16_GEMM, STEP_US, Rule, analysis, finding_of, saving_of, training
from tests.support.trace_builder import FETCH, TraceBuilder


def test_in_process_loading() -> None:
    builder = training(fetch_us=2500, loader="_SingleProcessDataLoaderIter")
    for step in range(4):
        builder.memcpy("HtoD", step * 12_500 + 2_600, 10, bytes=1000)
    finding = finding_of(input_bound, builder)
    # The last kernel of a step ends within it, so each step waits the whole of its fetch.
    assert finding.saving_high_ms == pytest.approx(2.5, rel=0.01)
    # One copy to the device: a batch of one tensor, which takes at most 1.5 ms and 0.3 ms to receive.
    assert finding.saving_low_ms == 0
    assert "A batch has 1 tensor." in " ".join(finding.evidence)
    assert "Measure before you use worker processes" in finding.action
    assert "num_workers=0" in " ".join(finding.evidence)
    assert "num_workers=4" in finding.action


def test_a_processor_that_trains_itself_waits_with_its_caches_cold() -> None:
    builder = convolving(on_processor())
    for step in range(3):
        builder.annotation(FETCH, step * 10_000 + 100, 4000)
    finding = finding_of(input_bound, builder)
    waited_ms = (analysis(builder).breakdown.category("input").mean_ns or 0) / 1e6
    assert 0 < waited_ms <= 4
    assert finding.saving_high_ms == pytest.approx(1.1 * waited_ms)


def test_slow_workers() -> None:
    assert finding_of(input_bound, training(fetch_us=2500)).action.startswith("Raise num_workers")
    # Twice the workers halve the step at best.
    assert finding_of(input_bound, training(fetch_us=30_000)).saving_high_ms == pytest.approx(20.0, rel=0.01)


IN_PROCESS = "_SingleProcessDataLoaderIter"
WORKERS = "_MultiProcessingDataLoaderIter"
ONE_TENSOR = {"tensors": 1, "tensor_bytes": 0, "objects": 0, "object_bytes": 0}
MOST_RECEIVED_MS, LEAST_SENT_MS, MOST_SENT_MS = 1.8, 0.18, 1.8
MAP = {
    "kind": "map", "workers": 0, "batch_size": 32, "pin_memory": False, "persistent_workers": False,
    "in_memory": False, "batched": False, "uses_model": False,
}  # fmt: skip


def recorded_on_cpu(
    fetch_us: float,
    rest_us: float,
    *,
    cores: int = 8,
    threads: int = 2,
    loader: str = IN_PROCESS,
    batch: dict[str, int] | None = ONE_TENSOR,
    transfer: ProbedTransfer | None = None,
    use: dict[str, float] | None = None,
    **facts: Any,
) -> RankAnalysis:
    """A training on a processor that waits for each batch and then computes."""
    processor = {
        "name": "A CPU", "cores": cores, "threads": threads, "cpus": cores, "machine_cpus": cores, "trains": True,
        "load": 1.0, **(use or {}),
    }  # fmt: skip
    builder, now = TraceBuilder(**{PROCESSOR_KEY: processor, LOADER_KEY: MAP | facts, BATCH_KEY: batch}), 0.0
    for number in range(5):
        builder.step(number, now, fetch_us + rest_us)
        builder.annotation(f"enumerate(DataLoader)#{loader}.__next__", now, fetch_us)
        builder.op("aten::mm", now + fetch_us, rest_us)
        now += fetch_us + rest_us
    recorded = analysis(builder)
    if transfer is not None:
        recorded = replace(recorded, probe=Probe("A CPU", 0, (), 1e7, 1e7, 1e7, 5.0, (), transfer=transfer))
    return recorded


def on_cpu(fetch_us: float, rest_us: float, **options: Any) -> Finding:
    """The finding of such a training."""
    return finding_of(input_bound, recorded_on_cpu(fetch_us, rest_us, **options))


def sending(sent_ms: float, received_ms: float) -> ProbedTransfer:
    """A probe that sent batches without noise."""
    return ProbedTransfer(sent_ms * 1e6, sent_ms * 1e6, received_ms * 1e6, received_ms * 1e6, 15)


MANY_TENSORS = {"tensors": 200, "tensor_bytes": 12_800, "objects": 40, "object_bytes": 0}


def text(finding: Finding) -> str:
    return " ".join((*finding.evidence, finding.action))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        # Measured: with 4 workers PPO trained on 256 steps instead of 64, and its rewards froze.
        ({"kind": "map", "uses_model": True}, "a copy of it that never learns"),
        ({"kind": "iterable", "uses_model": True}, "a copy of it that never learns"),
        ({"kind": "other", "workers": None}, "do not come from a torch DataLoader"),
    ],
)
def test_loaders_that_get_no_workers(facts: dict[str, Any], said: str) -> None:
    finding = on_cpu(20_000, 20_000, **facts)
    assert said in text(finding)
    assert "DataLoader(…" not in finding.action
    assert (
        ("num_workers" in finding.action) == finding.action.endswith(" Leave num_workers=0.") == ("uses_model" in facts)
    )
    assert finding.saving_low_ms == 0


def test_an_iterable_data_set_gets_one_worker() -> None:
    finding = on_cpu(60_000, 20_000, kind="iterable", threads=1)
    assert "Each further one yields all of it again" in text(finding)
    assert finding.action.startswith("Load in a worker process: DataLoader(…, num_workers=1, persistent_workers=True).")
    # A step is never shorter than the worker needs for its batch: at most the rest of the step is saved.
    assert saving_of(finding) == pytest.approx(((20 - MOST_SENT_MS) / 2, 20 - LEAST_SENT_MS))
    map_style = on_cpu(60_000, 20_000, threads=1)
    assert "num_workers=3" in map_style.action
    slow_to_send = on_cpu(2_000, 2_000, kind="iterable", threads=1, batch=MANY_TENSORS)
    assert "num_workers=1" not in slow_to_send.action
    assert slow_to_send.saving_low_ms == 0


@pytest.mark.parametrize(
    ("fetch_us", "rest_us", "cores", "workers"),
    [(20_000, 20_000, 8, 1), (50_000, 20_000, 8, 3), (60_000, 20_000, 8, 3), (400_000, 20_000, 8, 7)],
)
def test_as_many_workers_as_the_cost_of_a_batch_needs_and_cores_allow(
    fetch_us: float, rest_us: float, cores: int, workers: int
) -> None:
    recorded = recorded_on_cpu(fetch_us, rest_us, cores=cores, threads=1)
    assert advised_workers(recorded) == workers
    assert advised_workers(replace(recorded, loading=None)) is None
    finding = finding_of(input_bound, recorded)
    assert finding.action.startswith(
        f"Load in worker processes: DataLoader(…, num_workers={workers}, persistent_workers=True)"
    )
    fetch_ms, step_ms = fetch_us / 1000, (fetch_us + rest_us) / 1000
    # A step is never shorter than the workers need to make and send its batch. Workers that wait need no core.
    enough = -(-fetch_us // rest_us)
    least_ms = min((step_ms - (fetch_ms + MOST_SENT_MS) / workers) / 2, fetch_ms / 2 - MOST_RECEIVED_MS)
    most_ms = min(step_ms - (fetch_ms + LEAST_SENT_MS) / enough, 1.1 * fetch_ms - LEAST_SENT_MS)
    assert saving_of(finding) == pytest.approx((least_ms, most_ms))


# Half to all of a saving is predicted. A worker sends a batch in 0.5 ms, and the training receives it in 0.5 to 0.75.
# So of 10 ms, one worker needs 8.5 for a batch, and two workers and the training 11 to 11.25 on two cores.
@pytest.mark.parametrize(
    ("fetch_ms", "cores", "use", "advised", "savings"),
    [
        # Measured: 19.4 % with one worker, 34.1 % with two, and 39.9 % with three.
        (8, 2, {}, 2, {1: (0.75, 1.5), 2: (2.1875, 4.5), 3: (2.1875, 4.5)}),
        (8, 8, {}, 4, {1: (0.75, 1.5), 2: (2.875, 5.75), 4: (3.25, 7.875)}),
        # On one core nothing is made at the same time, unless the fetch waits for something else.
        # Measured: 9 % slower with one worker, 19 % with two.
        (8, 1, {}, 1, {1: (-1.25, 0.0), 2: (-1.25, 0.0)}),
        (8, 1, {"thread_cpu": 0.2, "core_wait": 0.0}, 4, {1: (0.75, 1.5), 2: (2.875, 5.75), 4: (3.25, 7.0)}),
        # Measured: 19.2 % with one worker, 46.0 % with two.
        (38, 2, {}, 2, {1: (0.75, 1.5), 2: (9.6875, 19.5)}),
        (3, 2, {}, 2, {1: (0.75, 1.5), 2: (0.75, 2.0)}),
    ],
)
def test_the_saving_of_each_number_of_workers(
    fetch_ms: float, cores: int, use: dict[str, float], advised: int, savings: dict[int, tuple[float, float]]
) -> None:
    facts = {"thread_cpu": 1.0, "core_wait": 0.0} | use
    recorded = recorded_on_cpu(1000 * fetch_ms, 2000, cores=cores, threads=1, use=facts, transfer=sending(0.5, 0.5))
    assert advised_workers(recorded) == advised
    for workers, (low_ms, high_ms) in savings.items():
        saved_ns = worker_saving(recorded, workers)
        assert saved_ns is not None
        assert saved_ns == pytest.approx((1e6 * low_ms, 1e6 * high_ms)), workers


def test_large_tensors_on_one_core_or_that_cost_more_to_send_get_no_workers() -> None:
    for finding in (
        on_cpu(8000, 2000, cores=1, threads=1, use={"thread_cpu": 1.0, "core_wait": 0.0}),
        on_cpu(8000, 2000, cores=2, threads=1, transfer=sending(9.0, 6.0)),
    ):
        assert "DataLoader(…" not in finding.action
        assert "Worker processes would save less than 3.0 % of the step, or nothing." in finding.evidence
    assert worker_saving(recorded_on_cpu(8000, 2000, loader="none"), 1) is not None
    assert worker_saving(replace(recorded_on_cpu(8000, 2000), loading=None), 1) is None


def test_many_small_tensors_get_no_workers() -> None:
    # Measured: 3.6 ms per step became 73 ms with a worker process, on a busy machine with 2 cores.
    finding = on_cpu(2_000, 8_000, batch=MANY_TENSORS)
    assert "num_workers=1" not in finding.action
    assert finding.action.endswith("leave num_workers=0.")
    assert "A batch has 200 tensors. Receiving them from a worker process takes the training thread 6.15 ms to" in text(
        finding
    )
    assert finding.saving_low_ms == 0


def test_a_batch_that_costs_more_than_its_tensors_gets_workers() -> None:
    finding = on_cpu(400_000, 200_000, batch=MANY_TENSORS, threads=1)
    assert finding.action.startswith("Load in worker processes: DataLoader(…, num_workers=2")
    assert (finding.saving_low_ms or 0) > 0


@pytest.mark.parametrize(
    ("received_ms", "advised"), [(1.0, "Load in worker"), (7.0, "Measure before"), (14.0, "Make each batch cheaper")]
)
def test_a_measured_transfer_decides(received_ms: float, advised: str) -> None:
    """Of a wait of 15 ms, the least is half without 1.5 times the transfer, and the most 16.5 ms without it."""
    finding = on_cpu(15_000, 25_000, threads=1, transfer=sending(2.0, received_ms))
    assert finding.action.startswith(advised)
    assert "measured on this device" in text(finding)
    low_ms = max(0.0, 7.5 - 1.5 * received_ms)
    assert finding.saving_low_ms == pytest.approx(low_ms)
    if advised != "Make each batch cheaper":
        assert finding.saving_high_ms == pytest.approx(16.5 - received_ms)


@pytest.mark.parametrize("batch", [None, ONE_TENSOR | {"complete": 0}])
def test_a_recording_without_the_contents_of_a_batch_asks_to_measure(batch: dict[str, int] | None) -> None:
    finding = on_cpu(20_000, 20_000, threads=1, batch=batch)
    assert finding.saving_low_ms == 0
    assert finding.action.startswith(
        "Measure before you use worker processes: lightning-perf data --step-ms 20 PKG:NAME."
    )
    assert "does not show the contents of a batch" in text(finding)


def test_workers_that_only_send_are_not_raised() -> None:
    slow = sending(6.0, 4.0)
    finding = on_cpu(5_000, 20_000, loader=WORKERS, workers=1, threads=1, transfer=slow, batch=MANY_TENSORS)
    assert finding.action.startswith("Send fewer, larger tensors")
    assert finding.saving_low_ms == 0
    few = on_cpu(5_000, 20_000, loader=WORKERS, workers=1, threads=1, transfer=slow, batch=ONE_TENSOR)
    assert few.action.startswith("Measure num_workers=0")
    assert "fewer, larger" not in few.action
    quick = on_cpu(5_000, 20_000, loader=WORKERS, workers=1, threads=1, transfer=sending(1.0, 0.4))
    assert quick.action.startswith("Raise num_workers")


def test_workers_that_compete_for_cores_are_warned_of() -> None:
    # Measured: pytorch-forecasting with 4 workers was 113 % slower.
    finding = on_cpu(60_000, 20_000, cores=4, threads=4)
    assert finding.saving_low_ms == 0
    assert finding.action == (
        "Measure before you use worker processes: lightning-perf tune tries DataLoader(…, num_workers=3, "
        "persistent_workers=True)."
    )
    assert "3 worker processes and 4 threads of torch compete for 4 cores: the training may get slower." in text(
        finding
    )
    assert "torch.set_num_threads(1)" in text(finding)


def test_pinned_memory_is_for_a_gpu_and_what_is_set_is_not_advised() -> None:
    assert "pin_memory" not in text(on_cpu(20_000, 20_000))
    builder = training(fetch_us=2500, loader=IN_PROCESS)
    finding = finding_of(input_bound, builder)
    assert "num_workers=4, pin_memory=True, persistent_workers=True" in finding.action
    builder.top_level[LOADER_KEY] = MAP | {"pin_memory": True}
    assert "pin_memory" not in text(finding_of(input_bound, builder))
    finding = on_cpu(20_000, 20_000, loader=WORKERS, workers=2, persistent_workers=True)
    assert "persistent_workers" not in text(finding)
    assert finding.action.startswith("Raise num_workers")


def test_workers_on_all_cores_are_not_raised() -> None:
    finding = on_cpu(20_000, 20_000, loader=WORKERS, workers=7)
    assert finding.action.startswith("Set persistent_workers=True, and make each batch cheaper")
    assert "7 worker processes already use all of the 8 cores." in finding.evidence
    computing = on_cpu(48_000, 2_000, cores=2, threads=1, loader=WORKERS, workers=2, use={"worker_cpu": 0.97})
    assert (
        "Each of the 2 worker processes computes for 97.0 % of the time, and there are 2 cores." in computing.evidence
    )
    for one in (finding, computing):
        assert "num_workers" not in one.action
        assert one.saving_low_ms == 0


@pytest.mark.parametrize(
    ("worker_cpu", "worker_wait", "advised"),
    [(0.02, 0.0, 15), (0.3, 0.0, 12), (0.95, 0.0, 4), (0.1, 0.9, 4)],  # the last ones wait for a core, not for a disk
)
def test_processor_time_of_workers_decides_how_many_more(worker_cpu: float, worker_wait: float, advised: int) -> None:
    # 102, 49, 16 ms with 0, 2, 6 workers that sleep: two of them need 100 ms for a batch, and the rest of a step 2 ms.
    use = {"worker_cpu": worker_cpu, "worker_wait": worker_wait}
    recorded = recorded_on_cpu(48_000, 2_000, cores=4, threads=1, loader=WORKERS, workers=2, use=use)
    assert advised_workers(recorded) == advised
    finding = finding_of(input_bound, recorded)
    assert finding.action.startswith(f"Raise num_workers from 2 to {advised}")
    assert ("waits for the rest" in text(finding)) == (worker_cpu + worker_wait < 0.5)
    assert ("waits for a core for 90.0 %" in text(finding)) == (worker_wait > 0)
    on_cores_ms = (100 * min(1.0, worker_cpu / (1 - worker_wait)) + 2) / 4
    assert finding.saving_high_ms == pytest.approx(min(48.0, 50 - max(100 / advised, on_cores_ms)))


WORKER = WorkerGrowth(4, 0, 9, 0, 0, 0, 0, cpu=0.1, core_wait=0.05, disk_wait=0.0, open_batches=1.6)


@pytest.mark.parametrize(
    ("changed", "said", "advice"),
    [
        ({"cpu": 0.9}, "computes for 90.0 % of its time", "make each batch cheaper"),
        ({"core_wait": 0.8}, "waits for a core for 80.0 %", "Give the loader more cores"),
        ({"disk_wait": 0.7, "read_bytes_per_s": 2**20}, "for 70.0 % (and reads 1.00 MiB/s)", "Read less from"),
        ({"disk_wait": 0.7, "memory_stalls": 0.8}, "short of memory", "Free memory"),
        ({"disk_wait": 0.7, "memory_stalls": 0.2}, "for 70.0 %", "Read less from"),
        ({}, "such as a network, a lock or a sleep, for 85.0 %", "Find the stage that waits by lightning-perf data"),
        ({"open_batches": 0.1, "queued": 0.9}, "batches wait in the queue", "Measure num_workers=0"),
        ({"open_batches": 0.1, "queued": 0.4}, "single batches take much longer", "Raise prefetch_factor"),
        ({"slow": 2}, "Worker process 2 of 0 to 3 is slower than the others.", "Find out why this worker"),
        # Each of them is less than half of the wait.
        (
            {"cpu": 0.3, "core_wait": 0.35, "disk_wait": 0.2},
            "no single cause of the wait is known",
            "Raise num_workers",
        ),
        ({"open_batches": None}, "waits for something else or has nothing to do for 85.0 %", "Raise num_workers"),
    ],
)
def test_the_time_of_workers_says_why_they_are_slow(changed: dict[str, Any], said: str, advice: str) -> None:
    # The training waits for 80 % of the step, so a cause takes at least 40 % of a worker's time.
    worker = replace(WORKER, **changed)
    use = {"worker_cpu": worker.cpu or 0.0, "worker_wait": worker.core_wait or 0.0}
    recorded = recorded_on_cpu(40_000, 10_000, cores=8, threads=1, loader=WORKERS, workers=4, use=use)
    finding = finding_of(input_bound, replace(recorded, worker=worker))
    assert said in " ".join(finding.evidence)
    assert advice.lower() in finding.action.lower()
    useless = "slow" in changed or worker.open_batches == 0.1 or worker.memory_stalls == 0.8 or worker.core_wait == 0.8
    assert ("num_workers from 4" in finding.action) == (not useless)


def test_a_fetch_that_sleeps_gets_workers_beyond_the_cores() -> None:
    # The training thread has a core for 12 % of the time: 8 of 50 ms in the step, and nothing in the fetch.
    finding = on_cpu(400_000, 50_000, cores=2, threads=1, use={"thread_cpu": 0.12, "core_wait": 0.0})
    assert finding.action.startswith("Load in worker processes: DataLoader(…, num_workers=8, ")
    busy = on_cpu(400_000, 50_000, cores=2, threads=1, use={"thread_cpu": 0.99, "core_wait": 0.0})
    assert "num_workers=2, " in busy.action


def test_fast_data_are_fetched_by_the_batch() -> None:
    plain = on_cpu(600, 2000, batch_size=64)
    assert plain.action.startswith("Fetch whole batches: give the dataset a method __getitems__")
    assert plain.saving_low_ms == 0
    finding = on_cpu(600, 2000, in_memory=True, batch_size=64)
    assert "num_workers" not in finding.action
    assert "batch_size=None, sampler=BatchSampler(RandomSampler(dataset), batch_size=64" in finding.action
    assert "RandomSampler shuffles all samples" in finding.changes
    assert "A batch takes 600 µs, 9.38 µs per sample" in text(finding)
    assert finding.saving_low_ms == pytest.approx(0.3)
    ordered = on_cpu(600, 2000, in_memory=True, batch_size=64, order="SequentialSampler")
    assert "BatchSampler(SequentialSampler(dataset), batch_size=64" in ordered.action
    assert not ordered.changes
    buckets = on_cpu(600, 2000, in_memory=True, batch_size=64, order="SequentialSampler", sampler="Buckets")
    assert "use your own sampler" in buckets.changes


def test_the_advice_for_whole_batches_is_sound() -> None:
    """Such a loader yields the same batches as the one that takes samples one by one."""
    torch = pytest.importorskip("torch")
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

    dataset = TensorDataset(torch.arange(10.0), torch.arange(10))
    slow = list(DataLoader(dataset, batch_size=4))
    fast = list(
        DataLoader(dataset, batch_size=None, sampler=BatchSampler(SequentialSampler(dataset), 4, drop_last=False))
    )
    assert len(slow) == len(fast) == 3
    for one, other in zip(slow, fast, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def copying(copy_us: int, *, pinned: bool, bytes_copied: int = 1_000_000, late_us: int = 0) -> TraceBuilder:
    """Steps of 1000 µs that begin with a copy, after which the device idles until the host has issued work."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for correlation, start in enumerate(builder.steps(3, 1000), 10):
        builder.op("aten::copy_", start, copy_us)
        builder.runtime("cudaMemcpyAsync", start, copy_us, correlation)
        builder.memcpy("HtoD", start, copy_us, correlation, bytes=bytes_copied, pinned=pinned)
        work = copy_us + late_us
        builder.op("aten::mm", start + work, 50)
        builder.launch(
            BF16_GEMM, call_us=start + work - 5, call_duration_us=5, start_us=start + work, duration_us=1000 - work
        )
    return builder


def test_copies_from_pageable_memory() -> None:
    finding = finding_of(pageable_copies, copying(100, pinned=False))
    assert "pin_memory=True" in finding.action
    assert "torch.cuda.Stream()" in finding.action
    # 10 GB/s: pinned copies reach at most the 64 GB/s of the bus, and compute does not hide the rest.
    assert saving_of(finding) == pytest.approx((0.1 / 3, 0.1 * (1 - 10 / 64)))
    slow = finding_of(pageable_copies, copying(100, pinned=False, bytes_copied=100_000))
    assert slow.saving_high_ms == pytest.approx(0.1 * (1 - 1 / 8))
    assert "1 copy per step" in finding.evidence[0]
    assert "10.0 GB/s" in finding.evidence[0]
    # 20 times as many bytes: no bus is that much faster than 50 GB/s.
    fast = finding_of(pageable_copies, copying(400, pinned=False, bytes_copied=20_000_000))
    assert saving_of(fast) == pytest.approx((0.4 * (1 - 50 / 64), 0.4 * (1 - 50 / 64)))


@pytest.mark.parametrize(("late_us", "gained_us"), [(40, 40), (300, 100)])
def test_the_host_waits_for_a_pageable_copy_and_issues_work_late(late_us: int, gained_us: int) -> None:
    finding = finding_of(pageable_copies, copying(100, pinned=False, late_us=late_us))
    assert finding.saving_high_ms == pytest.approx(0.1 * (1 - 10 / 64) + gained_us / 1000)


@pytest.mark.parametrize(
    ("rule", "recorded", "fires"),
    [
        (input_bound, training(fetch_us=round(STEP_US * 0.045 / 0.955)), False),
        (input_bound, training(fetch_us=round(STEP_US * 0.055 / 0.945)), True),
        (pageable_copies, copying(33, pinned=False, bytes_copied=100_000), False),
        (pageable_copies, copying(36, pinned=False, bytes_copied=100_000), True),
        (pageable_copies, copying(100, pinned=True), False),
    ],
)
def test_a_rule_fires_from_its_threshold_on(rule: Rule, recorded: TraceBuilder, fires: bool) -> None:
    assert (rule(analysis(recorded)) is not None) == fires
