"""Rules about the step log of a run, on hand-made traces, logs and accounts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import lightning_perf
from lightning_perf.analysis.steps.step_times import find_period
from lightning_perf.findings.finding import Finding, Problem, SavingRange, make_finding
from lightning_perf.findings.steps import without_collections, without_parts_of_fit
from lightning_perf.findings.whole_run import find_in_fit
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.fit.account import GcTotals, write_account
from lightning_perf.run_files.steps import STEPS, StepSample
from lightning_perf.trace.description import LOADER_KEY, LOOP_KEY
from tests.findings.accounts import account, fit_time, starts
from tests.findings.recordings import saving_of
from tests.findings.test_whole_run import folder, recorded

MS = 1_000_000
LOADER = {"kind": "map", "workers": 2, "batches_per_epoch": 1000}


def periodic_run(
    path: Path, *, period: int = 10, extra_us: float = 300_000, steps: int = 120, log_every: int = 10, **changes: Any
) -> PerfReport:
    """A run of steps of 100 ms, every n-th of which takes longer."""
    trace = recorded(60, 60, 60, 60, 60)
    trace.top_level[LOOP_KEY] = {"loggers": ["CSVLogger"], "log_every_n_steps": log_every, "steps": 5, **changes}
    # The step log skips five steps at the beginning, and the recorded ones.
    numbers = [number for number in range(5, 5 + steps + 5) if number not in range(100, 105)][:steps]
    times = [(100_000 + (extra_us if number % period == period - 1 else 0), 60.0) for number in numbers]
    return lightning_perf.analyze(folder(path, trace, times))


def periodic(report: PerfReport) -> Finding:
    return next(finding for finding in report.findings if finding.kind == "periodic-steps")


def test_every_tenth_step_when_the_logger_logs(tmp_path: Path) -> None:
    finding = periodic(periodic_run(tmp_path))
    assert finding.title == "Periodic steps: every 10th step takes 300 ms longer, when CSVLogger logs"
    assert "log_every_n_steps is 10: Lightning calls CSVLogger in these steps." in finding.evidence
    assert "Trainer(log_every_n_steps=100)" in finding.action
    assert saving_of(finding) == pytest.approx((15, 30))
    assert finding.severity == "high"  # 22.5 of 130 ms


@pytest.mark.parametrize(("logging_s", "blamed"), [(5.0, False), (7.0, True)])
def test_a_logger_with_little_time_is_not_blamed_for_long_steps_at_its_period(
    tmp_path: Path, logging_s: float, blamed: bool
) -> None:
    # Every 10th of 400 steps takes 300 ms longer: 12 s.
    write_account(tmp_path, replace(account({("logging", "CSVLogger.log_metrics"): (logging_s, 40)}), steps=400))
    finding = periodic(periodic_run(tmp_path))
    assert ("when CSVLogger logs" in finding.title) == blamed
    assert (finding.part == "logging") == blamed
    assert ("in training_step" in finding.action) != blamed


def test_another_period_than_that_of_the_logger(tmp_path: Path) -> None:
    finding = periodic(periodic_run(tmp_path, period=7, log_every=50))
    assert finding.title == "Periodic steps: every 7th step takes 300 ms longer"
    assert "runs every 7 steps" in finding.action
    assert finding.saving_low_ms == 0  # it may be a second optimizer
    assert "CSVLogger" not in " ".join(finding.evidence)


@pytest.mark.parametrize(("extra_us", "fires"), [(0, False), (30_000, False), (34_000, True)])
def test_from_3_percent_of_the_run_on(tmp_path: Path, extra_us: float, fires: bool) -> None:
    assert ("periodic-steps" in kinds(periodic_run(tmp_path, extra_us=extra_us))) == fires


def logged(path: Path, step_ms: Callable[[int], float], wait_ms: Callable[[int], float], **loader: Any) -> PerfReport:
    """A run of 400 steps, with the facts of its loader."""
    trace = recorded(60, 60, 60, 60, 60)
    trace.top_level[LOADER_KEY] = LOADER | loader
    trace.write(path / "rank0.1000000001.pt.trace.json.gz")
    samples = [
        StepSample(step, round(step_ms(step) * MS), round(wait_ms(step) * MS), None, 32, step in range(100, 105))
        for step in range(400)
    ]
    STEPS.append(STEPS.path(path, 0), *samples)
    return lightning_perf.analyze(path)


def test_long_steps_that_fit_a_period_by_chance_are_not_periodic() -> None:
    number = np.arange(47)
    step_ns = np.full(47, 20 * MS)
    by_chance = step_ns.copy()
    by_chance[[2, 11, 20, 29, 7, 23, 40]] = 40 * MS  # four of the five steps at a distance of 9, and three others
    assert find_period(number, by_chance, 0 * number) is None
    step_ns[8::9] = 40 * MS
    found = find_period(number, step_ns, 0 * number)
    assert found is not None
    assert (found.period, found.steps) == (9, 5)


def every(period: int, extra_ms: float, usual_ms: float = 0.0) -> Callable[[int], float]:
    return lambda step: usual_ms + extra_ms * (step % period == period - 1)


def kinds(report: PerfReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def test_long_steps_that_wait_are_the_loaders_and_one_finding(tmp_path: Path) -> None:
    report = logged(tmp_path, every(2, 100, 2), every(2, 100))
    assert "periodic-steps" not in kinds(report)
    (waits,) = [finding for finding in report.findings if finding.kind == "input-bound"]
    assert "The period is num_workers=2" in waits.evidence[-1]


def test_short_waits_at_the_start_of_epochs_name_the_loader(tmp_path: Path) -> None:
    report = logged(tmp_path, every(50, 200, 100), every(50, 200), batches_per_epoch=50)
    (finding,) = [finding for finding in report.findings if finding.kind == "periodic-steps"]
    assert finding.title == "Periodic steps: every 50th step takes 200 ms longer to get its batch"
    assert "The period is the number of batches in an epoch" in finding.evidence[1]
    assert finding.action == "Keep the workers alive between epochs: DataLoader(…, persistent_workers=True)."


def test_waits_at_the_start_of_epochs_are_not_those_of_the_usual_batch(tmp_path: Path) -> None:
    # Measured: a sampler that sorts for 0.5 s per epoch, "A batch takes 12.1 ms", and advice to index whole batches.
    report = logged(tmp_path, every(40, 500, 10), every(40, 500, 0.4), workers=0, batches_per_epoch=40)
    (finding,) = report.findings
    assert finding.title == "Periodic steps: every 40th step takes 500 ms longer to get its batch"
    assert "in the sampler" in finding.action
    # With as long waits in the other steps, the loader is the cause.
    (tmp_path / "also").mkdir()
    report = logged(tmp_path / "also", every(40, 500, 22), every(40, 500, 13), workers=0, batches_per_epoch=40)
    assert "input-bound" in kinds(report)


def test_work_between_epochs_is_not_sought_in_the_step(tmp_path: Path) -> None:
    write_account(tmp_path, replace(account(), steps=400))
    report = logged(tmp_path, every(50, 200, 100), every(50, 0), batches_per_epoch=50)
    (finding,) = [finding for finding in report.findings if finding.kind == "periodic-steps"]
    assert "The period is the number of batches in an epoch" in finding.evidence[1]
    assert finding.action.startswith("Look for work at the start and end of epochs")


def restarted(path: Path) -> PerfReport:
    """A run of ten epochs of 40 steps, each of which starts its workers again."""
    entries: dict[tuple[Any, str], tuple[float, int]] = {
        ("worker start-up", "training"): (9.0, 10),
        ("worker start-up", "training: first batch"): (2.0, 10),
    }
    write_account(path, account(entries, starts=starts(10)))
    return logged(path, every(40, 200, 10), every(40, 200), batches_per_epoch=40)


def test_restarts_of_workers_explain_the_waits_of_first_steps(tmp_path: Path) -> None:
    report = restarted(tmp_path)
    assert kinds(report) == set()
    assert [finding.kind for finding in report.fit_findings] == ["worker-restarts"]
    assert "Over the fit: Restarted workers" in report.verdict.why


@pytest.mark.parametrize(
    ("entry", "hook_ns", "named"),
    [
        ((("callbacks", "Images.on_train_batch_end"), (12.0, 400)), 0, "Images.on_train_batch_end"),
        ((("checkpoints", "write"), (12.0, 40)), 0, "write of checkpoints"),
        ((("callbacks", "Images.on_train_batch_end"), (12.0, 400)), 30 * MS * 5, ""),  # as long in every step
        ((("callbacks", "Images.on_train_batch_end"), (0.1, 400)), 0, ""),
    ],
)
def test_the_work_of_long_steps_is_named(tmp_path: Path, entry: Any, hook_ns: int, named: str) -> None:
    # Every 10th of 400 steps takes 300 ms longer: 12 s, too little of the fit for a finding about it.
    made = replace(account(dict([entry, (("set-up", "Trainer and strategy"), (500.0, 0))])), steps=400)
    write_account(tmp_path, made)
    finding = periodic(periodic_run(tmp_path, log_every=50, hooks_ns={"Images.on_train_batch_end": hook_ns}))
    if named:
        assert finding.title.endswith(f"longer for {named}")
        assert finding.part == ("checkpoints" if "checkpoints" in named else named)
        assert named in finding.action
    else:
        assert "callbacks, loggers and checkpoints do not take that time" in finding.evidence[-1]


def growing(path: Path, *, samples: Callable[[int], int] = lambda _: 32, waiting: float = 0.0) -> PerfReport:
    """A run with steps of 10 ms at first, which grow by 50 µs per step. A share of each may be the wait for data."""
    trace = recorded(60, 60, 60, 60, 60)
    trace.write(path / "rank0.1000000001.pt.trace.json.gz")
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 400)
    steps = [
        StepSample(step, ns, round(waiting * ns), None, samples(step), step in range(100, 105))
        for step, ns in enumerate(np.round((10 + 0.05 * np.arange(400) + noise) * MS).astype(int).tolist())
    ]
    STEPS.append(STEPS.path(path, 0), *steps)
    return lightning_perf.analyze(path)


def growing_phases(path: Path, *phases: str, waiting: float = 0.0) -> PerfReport:
    """The same run with an account: some phases take three times as long in the second half."""
    made = account({("training steps", phase): (8.0, 399) for phase in phases})
    entries = tuple(
        replace(entry, early_ns=2_000_000_000, early_count=200)
        if entry.name in phases and entry.count > 1
        else replace(entry, early_ns=entry.time_ns // 2, early_count=entry.count // 2)
        for entry in made.entries
    )
    path.mkdir(exist_ok=True)
    write_account(path, replace(made, steps=400, entries=entries))
    return growing(path, waiting=waiting)


def test_waits_that_grow_are_the_loaders_unless_all_phases_grow_alike(tmp_path: Path) -> None:
    report = growing_phases(tmp_path / "loader", "fetch", waiting=0.8)
    assert report.findings[0].title.endswith("than at its start, in the fetch of batches")
    # Another program takes the cores: workers and training slow down together.
    assert "growing-steps" not in kinds(
        growing_phases(tmp_path / "machine", "fetch", "forward", "backward", waiting=0.8)
    )


def test_growing_steps_with_their_phase(tmp_path: Path) -> None:
    report = growing_phases(tmp_path, "forward")
    finding = report.findings[0]
    assert finding.kind == "growing-steps"
    assert finding.title.endswith("longer at the end of the run than at its start, in training_step")
    assert report.step_times is not None
    growth = report.step_times.growth
    assert growth is not None
    assert growth.slope_low_ns <= 50_000 <= growth.slope_high_ns
    assert growth.last_ns / growth.first_ns == pytest.approx(30 / 10.25, rel=0.05)
    assert "on_epoch=True" in finding.action
    assert saving_of(finding)[1] == pytest.approx(9.9, rel=0.05)  # a mean of 20 ms beyond 10.25 ms


def test_steps_that_grow_with_their_samples_are_no_finding(tmp_path: Path) -> None:
    assert "growing-steps" not in kinds(growing(tmp_path, samples=lambda step: 100 + step // 2))


@pytest.mark.parametrize(
    ("kind", "part", "saved_ms", "kept"),
    [
        # In 400 steps, 20 s are 50 ms per step.
        ("cpu-pauses", "Images.on_train_batch_end", 60, False),
        ("cpu-pauses", "Images.on_train_batch_end", 65, True),
        ("cpu-pauses", "Images.on_train_batch_start", 50, True),
        ("cpu-pauses", "Net.optimizer_step", 50, True),
        ("periodic-steps", "Images.on_train_batch_end", 50, True),
        ("cpu-pauses", "logging", 60, False),
        ("periodic-steps", "logging", 60, False),
        ("periodic-steps", "logging", 65, True),
        ("periodic-steps", "checkpoints", 60, False),
        ("periodic-steps", "checkpoints", 65, True),
        ("periodic-steps", "", 50, True),
    ],
)
def test_a_part_of_the_fit_is_one_finding(kind: str, part: str, saved_ms: float, kept: bool) -> None:
    parts = [("callbacks", "Images.on_train_batch_end"), ("logging", "CSVLogger.save"), ("checkpoints", "write")]
    fit = fit_time(dict.fromkeys(parts, (20.0, 400)) | {("checkpoints", "gather"): (0.0, 40)}, steps=400)
    problem = Problem("", "", "", SavingRange((0.0, saved_ms * MS), ""), part=part)
    of_steps = make_finding(kind, problem, whole_ns=100 * MS, rank=0)
    assert (without_parts_of_fit([of_steps], fit, find_in_fit(fit)) == [of_steps]) == kept
    assert without_parts_of_fit([of_steps], fit, ()) == [of_steps]
    assert without_parts_of_fit([of_steps], None, ()) == [of_steps]


@pytest.mark.parametrize(("seconds", "kept"), [(39.0, True), (41.0, False)])
def test_pauses_of_the_garbage_collector_explain_long_steps(seconds: float, kept: bool) -> None:
    """Long steps of 50 ms per step, in a fit of 1,001 steps: collections of 40 ms explain them."""
    full = GcTotals(2, 100, round(seconds * 1e9), 10**9, 0, 10**6)
    fit = fit_time(collections=(full,))
    (pauses,) = find_in_fit(fit)
    periodic = make_finding(
        "periodic-steps", Problem("", "", "", SavingRange((25e6, 50e6), "")), whole_ns=100e6, rank=0
    )
    other = replace(periodic, kind="host-work")
    assert without_collections([periodic, other], fit, [pauses]) == [*([periodic] if kept else []), other]
    assert without_collections([periodic, other], fit, []) == [periodic, other]
    assert without_collections([periodic, other], None, [pauses]) == [periodic, other]
