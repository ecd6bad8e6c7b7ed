"""Findings of a few recorded steps, set against the step log of the whole run: hand-made traces and logs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import lightning_perf
from lightning_perf.findings.conditions import contention
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.captures import WINDOWS, RecordedWindow
from lightning_perf.run_files.fit.account import write_account
from lightning_perf.run_files.steps import STEPS, StepSample
from lightning_perf.trace.description import LOADER_KEY, PROCESSOR_KEY, Processor
from tests.findings import accounts
from tests.findings.host_recordings import convolving, on_processor
from tests.findings.recordings import BF16_GEMM, saving_of
from tests.report.support import rendered
from tests.support.trace_builder import TraceBuilder

FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
COMPUTE_US = 1980
WINDOW = range(100, 105)


def recorded(*waits_us: float, compute_us: float = COMPUTE_US) -> TraceBuilder:
    """Steps on a processor, each of which waits for its batch and then computes."""
    builder, now = on_processor(threads=8), 0.0
    for number, wait_us in zip(WINDOW, waits_us, strict=False):
        builder.step(number, now, wait_us + compute_us).annotation(FETCH, now, wait_us)
        builder.op("aten::mm", now + wait_us, compute_us)
        now += wait_us + compute_us
    return builder


def folder(
    path: Path,
    trace: TraceBuilder,
    run: Sequence[tuple[float, float]],
    *,
    before_us: float | None = None,
    rank: int = 0,
) -> Path:
    """A run's folder: its trace, and the step time and data wait in µs of each step outside of the window.

    Warm-up, five steps, comes on top. `before_us` replaces the time of the steps before the window.
    """
    trace.write(path / "rank0.1000000001.pt.trace.json.gz")
    samples, times = [], list(run)
    for step in range(5 + len(times) + len(WINDOW)):
        profiled = step in WINDOW
        step_us, wait_us = (9000, 5000) if profiled or step < 5 else times.pop(0)
        if before_us is not None and step < WINDOW[0]:
            step_us = before_us
        samples.append(StepSample(step, round(1000 * step_us), round(1000 * wait_us), None, None, profiled))
    STEPS.append(STEPS.path(path, rank), *samples)
    return path


BURSTS = [(2000.0, 0.0), (2000.0, 0.0), (2000.0, 0.0), (6000.0, 4000.0)] * 100
ONE_LONG_WAIT = [(2000.0, 10.0)] * 150 + [(102_000.0, 100_000.0)] + [(2000.0, 10.0)] * 49  # a fifth of the run's time


@pytest.mark.parametrize(
    ("waits_us", "run", "share", "most_ms", "said"),
    [
        # Measured: "67.5 % waits, saves 33.8 to 74.3 %" above a table that said 5.8 % over 19,987 steps.
        (
            (110, 10_110, 110, 10_110, 110),
            [(2000, 116)] * 19_987,
            "5.8 %",
            0.116 * 1.1,
            "Over the run's 19,987 steps the wait is 5.8 %. The 5 recorded steps waited 67.5 %.",
        ),
        (
            (20,) * 5,
            [(2000, 800)] * 500,
            "40.0 %",
            0.88,
            "Over the run's 500 steps the wait is 40.0 %. The recorded steps hardly show it (1.0 %).",
        ),
        ((5, 5, 4000, 5, 5), BURSTS, "33.3 %", 1.1, "Over the run's 400 steps the wait is 33.3 %."),
        (
            (60, 10_060, 60, 10_060, 60),
            [(2000, 60)] * 500,
            "",
            0.0,
            "for 20.1 ms together, the others for 60.0 µs each. Over the run's 500 steps the wait is 3.0 %: an",
        ),
        ((10, 10, 4000, 10, 10), ONE_LONG_WAIT, "", 0.0, "20.4 %, but 0.5 % without the 2 longest waits"),
    ],
    ids=["two hiccups", "missed", "bursts", "outlier", "one long wait"],
)
def test_the_run_judges_the_waits_of_recorded_steps(
    tmp_path: Path, waits_us: tuple[float, ...], run: Any, share: str, most_ms: float, said: str
) -> None:
    report = lightning_perf.analyze(folder(tmp_path, recorded(*waits_us), run))
    assert not report.held_back
    if not share:
        assert not report.findings
        assert any(said in note for note in report.notes)
        assert said in " ".join(rendered(report).split())
        return
    (finding,) = report.findings
    assert finding.title == f"Input-bound: {share} of the step waits for data"
    assert finding.saving_high_ms == pytest.approx(most_ms)
    assert said in finding.evidence[-1]
    assert share in report.verdict.why


def test_a_cold_start_leads_and_holds_back_the_findings_of_its_steps(tmp_path: Path) -> None:
    builder, now = on_processor(threads=8), 0
    for number, wait_us in enumerate([20_000, 1000, 1000, 1000]):
        builder.step(number, now, wait_us + 2000).annotation(FETCH, now, wait_us)
        builder.op("aten::mm", now + wait_us, 2000)
        now += wait_us + 2000
    report = lightning_perf.analyze(builder.write(tmp_path / "trace.json"))
    assert [found.kind for found in report.findings] == ["cold-start"]
    assert report.findings[0].evidence == ("Step 0 takes 22.0 ms, the median of the other recorded steps 3.00 ms.",)
    assert [held.finding.kind for held in report.held_back] == ["input-bound"]
    assert "first steps" in report.held_back[0].reason
    assert report.verdict.next.startswith("Record later steps")


def test_a_wait_in_every_recorded_step_that_the_run_does_not_have_is_held_back_with_the_reason(
    tmp_path: Path,
) -> None:
    report = lightning_perf.analyze(folder(tmp_path, recorded(*[1980] * 5), [(2000, 20)] * 500))
    assert report.findings == ()
    (held,) = report.held_back
    assert held.finding.title.startswith("Input-bound: 50.0 %")
    assert held.reason == "Over the run's 500 steps the wait is 1.0 %, 50.0 % only in the 5 recorded steps."
    assert held.reason in " ".join(rendered(report).split())
    assert "### Held back" in report.to_markdown()
    assert "1.0 %, 50.0 % only" in report.to_markdown()
    assert report.verdict.why.startswith("1 finding of the recorded steps is held back. The first: Input-bound: 50.0 %")
    assert PerfReport.from_json(report.to_json()).held_back == report.held_back


def test_one_long_wait_does_not_enlarge_the_waits_of_the_usual_step(tmp_path: Path) -> None:
    run = [(2000.0, 800.0)] * 200
    run[150] = (25_002_000.0, 25_000_800.0)  # a worker that hung
    (finding,) = lightning_perf.analyze(folder(tmp_path, recorded(*[800] * 5), run)).findings
    assert finding.title == "Input-bound: 40.0 % of the step waits for data"
    assert finding.step_ms == pytest.approx(2.0)
    assert saving_of(finding)[1] == pytest.approx(0.88)
    assert "40.0 % without the 2 longest waits" in finding.evidence[-1]
    assert "The longest is 25.0 s, in step 160." in finding.evidence[-1]


@pytest.mark.parametrize("wait_us", [1000, 1], ids=["waits", "no waits"])
@pytest.mark.parametrize("per_epoch", [40, 41], ids=["epochs", "elsewhere"])
def test_waits_at_the_starts_of_epochs_need_no_more_workers(tmp_path: Path, per_epoch: int, wait_us: float) -> None:
    # Measured: nearly all waits of epochs of 32 batches are in their first steps, and 8 workers are enough.
    trace = recorded(*[wait_us] * 5, compute_us=1000)
    trace.top_level[LOADER_KEY] = {"workers": 4, "batches_per_epoch": per_epoch}
    run = [(2000.0, 10.0)] * 395
    for step in (40, 80, 120, 160, 240):
        for later, wait_us in ((0, 30_000.0), (2, 20_000.0)):
            run[step + later - 5 - (5 if step > WINDOW[0] else 0)] = (2000 + wait_us, 10 + wait_us)
    report = lightning_perf.analyze(folder(tmp_path, trace, run))
    notes = [note for note in report.notes if "nearly all of it in the first steps of an epoch" in note]
    assert bool(notes) == (per_epoch == 40)
    assert ("input-bound" in {finding.kind for finding in report.findings}) == (per_epoch == 41)
    if notes:
        assert "Over the run's 395 steps the wait is 24.4 %" in notes[0]
        assert "The other steps wait 0.5 %" in notes[0]


def test_waits_that_the_device_hides_do_not_count(tmp_path: Path) -> None:
    """The fetch takes half of each step; in the recording, all but an eighth of it is hidden by work on the device."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB")
    for place, number in enumerate(WINDOW):
        now = 2000 * place
        builder.step(number, now, 2000).annotation(FETCH, now, 1000).op("aten::mm", now + 1000, 900)
        builder.launch(BF16_GEMM, call_us=now + 1000, call_duration_us=8, start_us=now + 1010, duration_us=980)
        builder.device("kernel", BF16_GEMM, now, 900)
    report = lightning_perf.analyze(folder(tmp_path, builder, [(2000, 1000)] * 500))
    finding = next(finding for finding in report.findings if finding.kind == "input-bound")
    assert finding.title.startswith("Input-bound: 6.2 %")


def test_without_a_step_log_recorded_steps_are_judged_by_their_median(tmp_path: Path) -> None:
    path = recorded(30, 10_030, 30, 10_030, 30).write(tmp_path / "trace.json")
    report = lightning_perf.analyze(path)
    assert report.findings == ()
    assert any(
        note.startswith("2 of the 5 recorded steps waited for data for 20.1 ms together") for note in report.notes
    )
    path = recorded(500, 10_500, 500, 10_500, 500).write(tmp_path / "trace.json")
    (finding,) = lightning_perf.analyze(path).findings
    assert finding.title.startswith("Input-bound: 20.2 %")  # 500 of 2480 µs
    assert finding.saving_high_ms == pytest.approx(0.55)


def test_without_a_step_log_waits_in_all_steps_stay_as_they_are(tmp_path: Path) -> None:
    (finding,) = lightning_perf.analyze(recorded(500, 700, 400, 600, 500).write(tmp_path / "trace.json")).findings
    assert finding.saving_high_ms == pytest.approx(0.54 * 1.1)
    assert not any("recorded steps" in line for line in finding.evidence)


def test_a_fast_stretch_is_said_in_the_headline_and_its_findings_are_held_back(tmp_path: Path) -> None:
    trace = on_processor(threads=8)
    for place, number in enumerate(WINDOW):
        trace.step(number, place * 1_030_000, 1_030_000)
        for call in range(1030):  # Python and operators of 5 µs: too little to compute
            trace.op("aten::add", place * 1_030_000 + 1000 * call, 5)
    run = folder(tmp_path, trace, [(5_020_000, 0)] * 200)
    report = lightning_perf.analyze(run)
    assert report.verdict.where.startswith("Recorded in an unusually fast stretch of the run. A step takes 5.02 s")
    assert report.findings == ()
    (held,) = report.held_back
    assert held.finding.kind == "cpu-overhead"
    assert "The recorded steps took 1.03 s, the run's median step 5.02 s" in held.reason


def stalling(walls_us: Sequence[float], allocated_us: Sequence[float]) -> TraceBuilder:
    """Steps on a device that ask the driver for memory while it idles."""
    builder, now = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB"), 0.0
    for number, wall, allocated in zip(WINDOW, walls_us, allocated_us, strict=True):
        builder.step(number, now, wall)
        if allocated:
            builder.runtime("cudaMalloc", now + 10, allocated)
        begin = now + 20 + allocated
        builder.op("aten::mm", begin, 50)
        builder.launch(BF16_GEMM, call_us=begin + 10, call_duration_us=8, start_us=begin + 20, duration_us=900)
        now += wall
    return builder


def test_one_step_that_asks_the_driver_for_memory_is_an_outlier(tmp_path: Path) -> None:
    builder = stalling([1000, 1000, 6000, 1000, 1000], [0, 0, 5000, 0, 0])
    report = lightning_perf.analyze(folder(tmp_path, builder, [(1000, 0)] * 300))
    assert "allocator" not in {finding.kind for finding in report.findings}
    assert any("1 of the 5 recorded steps asked the driver for memory for 5.00 ms" in note for note in report.notes)
    assert any("Slow steps take 0 % of the run's time." in note for note in report.notes)


def test_the_median_of_slow_recorded_steps_is_a_share_of_the_usual_step(tmp_path: Path) -> None:
    builder = stalling([2000, 2000, 6000, 2000, 2000], [500, 500, 4500, 500, 500])
    report = lightning_perf.analyze(folder(tmp_path, builder, [(1200, 0)] * 300))
    finding = next(finding for finding in report.findings if finding.kind == "allocator")
    assert finding.step_ms == pytest.approx(1.2)
    # The device works 900 µs. In the mean it idles 1.9 ms, 1.3 ms of it in calls that take 0.5 ms in the median step.
    assert saving_of(finding) == pytest.approx((0.5 / 1.3 * 0.65 * 0.3 / 1.9, 0.5 / 1.3 * 0.3))


@pytest.mark.parametrize(("before_us", "slow"), [(4000, True), (None, False)], ids=["slow stretch", "profiler"])
def test_a_slow_stretch_is_told_from_the_cost_of_the_profiler(
    tmp_path: Path, before_us: float | None, slow: bool
) -> None:
    builder = stalling([4000] * 5, [1000] * 5)
    run = folder(tmp_path, builder, [(1000, 0)] * 300, before_us=before_us)
    samples = [
        StepSample(s.step, 4_000_000 if s.profiled else s.step_ns, s.data_wait_ns, None, None, s.profiled)
        for s in STEPS.read(STEPS.path(run, 0))
    ]
    STEPS.path(run, 0).write_bytes(STEPS.encode(*samples))
    WINDOWS.append(WINDOWS.path(run, 0), RecordedWindow("", WINDOW[0], WINDOW[-1], 5, 0, 0, 1))
    report = lightning_perf.analyze(run)
    assert report.verdict.where.startswith("Recorded in an unusually slow stretch") == slow
    assert ("allocator" in {held.finding.kind for held in report.held_back}) == slow
    assert ("allocator" in {finding.kind for finding in report.findings}) != slow


def test_a_run_of_which_every_step_was_profiled_says_nothing_against_the_recording(tmp_path: Path) -> None:
    recorded(*[500] * 5).write(tmp_path / "rank0.1000000001.pt.trace.json.gz")
    samples = [StepSample(step, 2_000_000, 0, None, None, True) for step in range(20)]
    STEPS.append(STEPS.path(tmp_path, 0), *samples)
    (finding,) = lightning_perf.analyze(tmp_path).findings
    assert finding.title.startswith("Input-bound: 20.2 %")


@pytest.mark.parametrize(("logged", "share"), [((0, 1), 10.0), ((0,), 50.0)], ids=["own log", "no log"])
def test_a_rank_is_judged_by_its_own_step_log(tmp_path: Path, logged: tuple[int, ...], share: float) -> None:
    """Rank 0 never waits. Rank 1 waited for half of its recorded steps, and for a tenth of all its steps."""
    for rank, wait_us in ((0, 10.0), (1, 1980.0)):
        trace = recorded(*[wait_us] * 5).rank(rank, 2, backend="gloo")
        trace.write(tmp_path / f"rank{rank}.100000000{rank}.pt.trace.json.gz")
    for rank in logged:
        wait_us = 200 if rank == 1 else 10
        samples = [StepSample(step, 2_000_000, 1000 * wait_us, None, None, False) for step in range(300)]
        STEPS.append(STEPS.path(tmp_path, rank), *samples)
    finding = next(each for each in lightning_perf.analyze(tmp_path).findings if each.kind == "input-bound")
    assert finding.rank == 1
    assert finding.title.startswith(f"Input-bound: {share} %")


QUIET = Processor(cores=2, threads=2, cpus=2, machine_cpus=2, load=2.0, core_wait=0.01, trains=True)


BUSY = "The machine was busy during the recording: "
LOADED = f"{BUSY}a load of 6.2 on 2 processors, and torch uses 2 threads."


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, ""),
        ({"load": 2.9}, ""),
        ({"load": 6.2}, LOADED),
        ({"load": 6.2, "cpus": None, "machine_cpus": None, "core_wait": None}, LOADED),
        ({"load": 6.2, "machine_cpus": 64}, ""),  # the rest of a large machine may be at work
        (
            {"load": 60.0, "machine_cpus": 64, "core_wait": 0.4},
            f"{BUSY}the training thread waited for a core for 40.0 % of the time.",
        ),
        ({"threads": 16}, "Oversubscribed: torch computes on 16 threads, and the process may use 2 processors."),
        ({"threads": 8, "cpus": None, "cores": 4}, ""),  # perhaps eight threads of four cores
        ({"load": None, "core_wait": None}, ""),
    ],
    ids=str,
)
def test_what_contends(changes: dict[str, Any], sentence: str) -> None:
    assert contention(replace(QUIET, **changes)) == sentence
    assert contention(None) == contention(Processor()) == ""


def report(path: Path, *, fetch: bool = False, top: dict[str, Any] | None = None, **facts: Any) -> PerfReport:
    """A training on two cores that bf16 and channels last would speed up."""
    known = {"name": "A CPU", "cores": 2, "threads": 2, "cpus": 2, "machine_cpus": 2, "trains": True, "load": 2.0}
    builder = convolving(TraceBuilder(**{PROCESSOR_KEY: {**known, "bf16": ["avx512_bf16"], **facts}, **(top or {})}))
    if fetch:
        for step in range(3):
            builder.annotation(FETCH, step * 10_000 + 100, 4000)
    return lightning_perf.analyze(builder.write(path / "trace.json"))


def paused(step_us: int, pause_us: int, wait_us: int = 0) -> TraceBuilder:
    """Steps on a busy machine that wait for their batch, compute, and then run no operator for a while."""
    builder = on_processor(threads=8, load=30.0)
    for number, start in zip(WINDOW, range(0, len(WINDOW) * step_us, step_us), strict=True):
        builder.step(number, start, step_us).annotation("perf::optimizer", start + step_us - pause_us, pause_us)
        if wait_us:
            builder.annotation("perf::fetch", start, wait_us).annotation(FETCH, start, wait_us)
        builder.op("aten::mm", start + wait_us, step_us - pause_us - wait_us)
    return builder


@pytest.mark.parametrize(("usual_us", "held"), [(1000, True), (2900, True), (3100, False), (10_000, False)])
def test_pauses_that_are_longer_than_the_usual_step_are_held_back(tmp_path: Path, usual_us: int, held: bool) -> None:
    # Measured: "3.19 ms per step in Net.optimizer_step" of a training with steps of 1.15 ms.
    report = lightning_perf.analyze(folder(tmp_path, paused(10_000, 3000), [(usual_us, 0)] * 500))
    assert ("cpu-pauses" in {finding.kind for finding in report.findings}) is not held
    reasons = {one.finding.kind: one.reason for one in report.held_back}
    assert reasons.get("cpu-pauses", "").startswith("The run's median step takes ") is held


@pytest.mark.parametrize(("step_ms", "held"), [(2.9, True), (3.1, False)])
def test_pauses_of_a_short_fit_are_not_those_of_the_callback_itself(tmp_path: Path, step_ms: float, held: bool) -> None:
    # Measured: "17.0 ms per step outside operators between batches" of a fit of one step of 2.6 ms.
    entries = {("first step", "forward"): (step_ms / 1000, 1), ("own cost", "hooks"): (0.1, 20)}
    nothing = dict.fromkeys(accounts.USUAL, (0.0, 0))
    write_account(tmp_path, replace(accounts.account(nothing | entries), steps=1))
    paused(10_000, 3000).write(tmp_path / "rank0.1000000001.pt.trace.json.gz")
    STEPS.append(STEPS.path(tmp_path, 0), *(StepSample(n, 10_000_000, 0, None, 32, True) for n in WINDOW))
    report = lightning_perf.analyze(tmp_path)
    assert ("cpu-pauses" in {finding.kind for finding in report.findings}) is not held
    reasons = {one.finding.kind: one.reason for one in report.held_back}
    assert reasons.get("cpu-pauses", "").startswith("Without the cost of PerfCallback itself") is held


@pytest.mark.parametrize(
    ("thread_cpu", "core_wait", "held"),
    [
        # Steps pause for 3 of 10 ms. Measured: 40 short calls of self.log, called "9.35 ms per step outside operators".
        (0.4, 0.58, True),
        (0.7, 0.26, True),
        (0.7, 0.24, False),  # the pauses are longer than that
        (0.36, 0.58, False),  # the thread slept for 6 % of the time
        (0.95, 0.05, False),
    ],
)
def test_pauses_that_may_be_waits_for_a_core_are_held_back(
    tmp_path: Path, thread_cpu: float, core_wait: float, held: bool
) -> None:
    builder = paused(10_000, 3000)
    builder.top_level[PROCESSOR_KEY] = {"cores": 2, "trains": True, "thread_cpu": thread_cpu, "core_wait": core_wait}
    report = lightning_perf.analyze(folder(tmp_path, builder, [(10_000, 0)] * 500))
    assert ("cpu-pauses" in {finding.kind for finding in report.findings}) is not held
    reasons = {one.finding.kind: one.reason for one in report.held_back}
    assert reasons.get("cpu-pauses", "").startswith("The training thread waited for a core for ") is held


def test_findings_are_sorted_by_their_share_of_the_step_that_they_are_about(tmp_path: Path) -> None:
    # Under the profiler, steps take four times as long, and their pauses of 6 ms exceed the usual wait of 4 ms.
    report = lightning_perf.analyze(folder(tmp_path, paused(40_000, 6000, wait_us=3000), [(10_000, 4000)] * 500))
    shares = {finding.kind: (finding.saving_high_ms or 0.0) / (finding.step_ms or 0.0) for finding in report.findings}
    assert list(shares) == ["input-bound", "cpu-pauses"]
    assert shares == pytest.approx({"input-bound": 0.44, "cpu-pauses": 0.15})


def test_a_share_of_slow_recorded_steps_is_given_for_the_usual_step(tmp_path: Path) -> None:
    # Measured: "saves 463 ms to 927 ms per step" of a training with steps of 339 ms.
    use = {"core_wait": 0.9, "other_cpu": 7.8, "worker_cpu": 0.0, "process_cpu": 0.2}
    builder = on_processor(threads=8, use=use)
    for number, start in zip(WINDOW, range(0, len(WINDOW) * 40_000, 40_000), strict=True):
        builder.step(number, start, 40_000).op("aten::mm", start, 40_000)
    report = lightning_perf.analyze(folder(tmp_path, builder, [(10_000, 0)] * 500))
    (finding,) = report.findings
    assert finding.kind == "thread-contention"
    assert finding.step_ms == pytest.approx(10.0)
    assert saving_of(finding) == pytest.approx((4.5, 9.0))
    assert "Estimated saving: 4.50 ms to 9.00 ms per step (45.0 % to 90.0 %)" in report.verdict.next


def issuing() -> TraceBuilder:
    """Steps of 2 ms with 100 operators of 20 µs, each of which launches a kernel of 9 µs when it ends."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB")
    for number, start in zip(WINDOW, range(0, len(WINDOW) * 2000, 2000), strict=True):
        builder.step(number, start, 2000)
        for at in range(start, start + 2000, 20):
            builder.op("aten::add", at, 20)
            builder.launch(BF16_GEMM, call_us=at, call_duration_us=5, start_us=at + 5, duration_us=9)
    return builder


@pytest.mark.parametrize(
    ("usual_us", "wait_us", "saving_ms", "step_ms"),
    [
        # The device works 900 µs in each step. Of a recorded one it waits 1.1 ms for the host.
        (1000.0, 0.0, (0.3 * 0.1, 0.1), 1.0),
        (1200.0, 200.0, (0.3 * 0.1, 0.1), 1.2),  # waits for data are another cause
        (910.0, 0.0, None, 0.0),
        (800.0, 0.0, (0.3 * 1.1, 0.9 * 1.1), 2.0),  # the usual step has less work for the device
        (1900.0, 0.0, (0.3 * 1.1, 0.9 * 1.1), 2.0),
    ],
    ids=["idle", "waits", "hardly idle", "less work", "as recorded"],
)
def test_a_busier_device_saves_no_more_than_the_idle_time_of_the_usual_step(
    tmp_path: Path, usual_us: float, wait_us: float, saving_ms: tuple[float, float] | None, step_ms: float
) -> None:
    report = lightning_perf.analyze(folder(tmp_path, issuing(), [(usual_us, wait_us)] * 200))
    found = next((finding for finding in report.findings if finding.kind == "launch-bound"), None)
    if found is None:
        assert saving_ms is None
        return
    assert saving_of(found) == pytest.approx(saving_ms)
    assert found.step_ms == pytest.approx(step_ms)
    rebased = step_ms < 2
    assert ("of the recorded step" in found.title) == rebased
    assert any("the device idles for 100 µs of it in all" in text for text in found.evidence) == rebased
    share = "90.0" if step_ms == 1 else "75.0"
    assert any(f"the device works for {share} % of a step" in note for note in report.notes) == rebased


def test_a_probe_is_not_advised_for_steps_that_are_unlike_the_usual_ones(tmp_path: Path) -> None:
    # Measured: "A probe measures it all the same", and with the probe the finding was held back all the same.
    trace = convolving(on_processor(bf16=["avx512_bf16"], load=30.0))
    report = lightning_perf.analyze(folder(tmp_path, trace, [(90_000, 0)] * 500))
    reasons = {held.finding.kind: held.reason for held in report.held_back}
    assert "Record other steps" in reasons["cpu-bf16"], reasons


def test_estimates_of_a_busy_machine_are_held_back_and_that_is_said_first(tmp_path: Path) -> None:
    # Measured: on 2 threads under load bf16 was to save 6 to 43 % and made the training 36 % slower.
    quiet = report(tmp_path)
    assert {"cpu-bf16", "cpu-channels-last"} <= {finding.kind for finding in quiet.findings}
    assert not quiet.held_back
    busy = report(tmp_path, load=6.2)
    assert not busy.findings
    assert {held.finding.kind for held in busy.held_back} == {finding.kind for finding in quiet.findings}
    assert busy.verdict.where.startswith("The machine was busy during the recording: a load of 6.2 on 2 processors")
    assert busy.verdict.next.startswith("Estimated while the machine was busy. A probe measures it all the same: ")
    assert busy.verdict.next.endswith(f"lightning-perf analyze {tmp_path / 'trace.json'} --probe.")
    assert "Estimated saving" not in rendered(busy)


@pytest.mark.parametrize(("core_wait", "busy"), [(0.79, True), (0.05, False)])
def test_without_findings_a_busy_machine_is_what_to_change(tmp_path: Path, core_wait: float, busy: bool) -> None:
    builder = recorded(60, 60, 60, 60, 60)
    builder.top_level[PROCESSOR_KEY] = {"cores": 2, "threads": 1, "trains": True, "core_wait": core_wait}
    report = lightning_perf.analyze(folder(tmp_path, builder, [(2040, 60)] * 100))
    assert report.findings == ()
    assert (report.verdict.next == "Record again on a quiet machine.") is busy


def test_oversubscribed_cores(tmp_path: Path) -> None:
    over = report(tmp_path, threads=16)
    assert over.verdict.where.startswith("Oversubscribed: torch computes on 16 threads")
    assert not over.findings
    assert over.held_back
    assert "Use fewer threads: torch.set_num_threads(2)." in over.verdict.next


def test_workers_on_busy_cores_may_win_nothing(tmp_path: Path) -> None:
    (finding,) = report(tmp_path, fetch=True, core_wait=0.3).findings
    assert finding.kind == "input-bound"
    assert finding.saving_low_ms == 0
    assert "compete for them and may make the training slower" in finding.evidence[-1]


def test_advice_without_workers_is_not_warned_of_them(tmp_path: Path) -> None:
    facts = {LOADER_KEY: {"kind": "map", "workers": 0, "batch_size": 8, "in_memory": True, "batched": False}}
    (finding,) = report(tmp_path, fetch=True, core_wait=0.3, top=facts).findings
    assert finding.action.startswith("Fetch whole batches")
    assert not any("compete" in line for line in finding.evidence)
    assert finding.saving_low_ms is not None
    assert finding.saving_low_ms > 0
