"""Ranks over the whole fit, on step logs with known delays."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lightning_perf
from lightning_perf.analysis.ranks.whole_fit import PHASES, RanksOverFit, compare_step_logs
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.fit.account import AccountEntry, FitAccount
from lightning_perf.run_files.steps import STEPS, StepSample, StepSamples
from tests.support.shown import console_text

BACKWARD_MS = 10.0
OWN_MS = {"input": 1.0, "compute": 6.0, "other": 2.0}


def log_ranks(
    delays_ms: Mapping[str, np.ndarray[Any, Any]], *, tokens: np.ndarray[Any, Any] | None = None, phases: bool = True
) -> dict[int, list[StepSample]]:
    """The logs of ranks that meet after each backward pass. Delays have a row per step and a column per rank."""
    steps, ranks = next(iter(delays_ms.values())).shape
    parts = {name: ms + np.broadcast_to(delays_ms.get(name, 0.0), (steps, ranks)) for name, ms in OWN_MS.items()}
    own = np.sum(list(parts.values()), axis=0)
    wall = own.max(axis=1) + BACKWARD_MS
    return {
        rank: [
            StepSample(
                step,
                round(1e6 * wall[step]),
                round(1e6 * parts["input"][step, rank]),
                None,
                4,
                False,
                None if tokens is None else int(tokens[step, rank]),
                round(1e6 * parts["compute"][step, rank]) if phases else None,
                round(1e6 * (wall[step] - own[step, rank])) if phases else None,
            )
            for step in range(steps)
        ]
        for rank in range(ranks)
    }


def compare(logs: Mapping[int, list[StepSample]], *accounts: FitAccount) -> RanksOverFit:
    found = compare_step_logs({rank: StepSamples.of(log) for rank, log in logs.items()}, accounts)
    assert found is not None
    return found


def write(folder: Path, logs: Mapping[int, list[StepSample]]) -> PerfReport:
    for rank, log in logs.items():
        STEPS.replace(folder, rank, *log)
    return lightning_perf.analyze(folder)


def jitter(steps: int, ranks: int, seed: int) -> np.ndarray[Any, Any]:
    """Times as on a busy machine: all vary, and some steps lose their core."""
    random = np.random.default_rng(seed)
    pauses = random.exponential(8.0, (steps, ranks)) * (random.random((steps, ranks)) < 0.1)
    return random.exponential(0.3, (steps, ranks)) + pauses


def late_since_400(folder: Path) -> PerfReport:
    """Rank 2 of four reads its batches late from step 400 on, in 93 % of the steps."""
    delays = jitter(1000, 4, 1) / 10
    late = [step for step in range(400, 1000) if step * 7 % 100 < 93]
    delays[late, 2] += 12.0
    return write(folder, log_ranks({"input": delays}))


def uneven_lengths(folder: Path) -> PerfReport:
    """Two ranks with batches of changing length, and a forward pass of 10 µs per token."""
    tokens = np.random.default_rng(2).integers(100, 1000, (300, 2))
    return write(folder, log_ranks({"compute": 0.01 * tokens}, tokens=tokens))


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_figures_against_brute_force(ranks: int) -> None:
    delays = jitter(60, ranks, ranks)
    logs = log_ranks({"compute": delays})
    found = compare(logs)
    rows = range(5, 60)
    own = [[log[step].step_ns - (log[step].wait_ns or 0) for log in logs.values()] for step in rows]
    least = 0.05 * statistics.median(logs[0][step].step_ns for step in rows)
    excess = [[row[r] - statistics.median_high(row[:r] + row[r + 1 :]) for r in range(ranks)] for row in own]
    assert found.steps == 55
    assert found.wait_ns == pytest.approx(statistics.fmean(max(row) - statistics.fmean(row) for row in own))
    for rank in range(ranks):
        late = [row[rank] for row in excess if row[rank] >= least]
        assert found.ranks[rank].late_share == pytest.approx(len(late) / 55)
        assert found.ranks[rank].late_ns == pytest.approx(statistics.median(late))
        assert found.ranks[rank].wait_ns == pytest.approx(statistics.fmean(max(row) - row[rank] for row in own))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_straggler_is_named_with_its_phase_and_size(phase: str, ranks: int) -> None:
    delays = jitter(200, ranks, 3)
    delays[:, -1] += 30
    straggler = compare(log_ranks({phase: delays})).straggler
    assert straggler is not None
    assert (straggler.rank, straggler.phase, straggler.since, straggler.until) == (ranks - 1, phase, None, None)
    assert straggler.share > 0.95
    assert straggler.late_ns == pytest.approx(30e6, rel=0.1)
    assert straggler.saving_ns == pytest.approx(30e6, rel=0.1)


@pytest.mark.parametrize(("begin", "end"), [(0, 1000), (400, 1000), (0, 600), (200, 700)])
@pytest.mark.parametrize("every", [1, 10])
def test_since_when_and_until_when(begin: int, end: int, every: int) -> None:
    delays = np.random.default_rng(4).exponential(0.05, (1000, 3))
    delays[begin:end:every, 1] += 50
    straggler = compare(log_ranks({"input": delays})).straggler
    assert straggler is not None
    assert straggler.rank == 1
    assert straggler.since == (begin or None)
    last = range(begin, end, every)[-1]
    assert straggler.until == (None if end == 1000 else last)
    assert straggler.share == pytest.approx(1 / every, rel=0.05)
    assert straggler.saving_ns == pytest.approx(50e6 * len(range(begin, end, every)) / 1000, rel=0.02)


def test_two_ranks_that_are_late_together_are_named_together(tmp_path: Path) -> None:
    delays = jitter(200, 4, 5) / 10
    delays[:, 2] += 20
    delays[:, 3] += 21
    report = write(tmp_path, log_ranks({"compute": delays}))
    (finding,) = report.findings
    assert finding.title.startswith("Straggler: ranks 2 and 3 are late in 100 % of the steps, by 21")
    assert finding.saving_high_ms == pytest.approx(21, rel=0.1)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_delay_that_changes_ranks_is_no_straggler(ranks: int, tmp_path: Path) -> None:
    delays = np.zeros((240, ranks))
    delays[np.arange(240), np.arange(240) % ranks] = 30
    found = compare(log_ranks({"compute": delays}))
    assert found.straggler is None
    assert sum(row.late_share for row in found.ranks) == 1
    assert found.wait_ns == pytest.approx(30e6 * (ranks - 1) / ranks)
    report = write(tmp_path, log_ranks({"compute": delays}))
    assert report.findings == (), "nothing is known of the cause"
    assert "the late rank changes" in console_text(report.blocks())


def test_two_of_three_ranks_late_in_turns_are_no_straggler() -> None:
    delays = np.full((240, 3), 30.0)
    delays[np.arange(240), np.arange(240) % 3] = 0
    assert compare(log_ranks({"compute": delays})).straggler is None


def test_no_alarm_in_healthy_runs() -> None:
    for seed in range(50):
        for ranks in (2, 4):
            found = compare(log_ranks({"compute": jitter(120, ranks, seed), "other": jitter(120, ranks, 1000 + seed)}))
            assert found.straggler is None, (seed, ranks)


def test_one_long_pause_is_no_straggler() -> None:
    delays = np.zeros((100, 2))
    delays[50, 1] = 10_000
    assert compare(log_ranks({"input": delays})).straggler is None


def test_lengths_that_explain_the_waits(tmp_path: Path) -> None:
    tokens = np.random.default_rng(6).integers(100, 1000, (300, 4))
    delays = 0.01 * tokens + jitter(300, 4, 6) / 4
    report = write(tmp_path, log_ranks({"compute": delays}, tokens=tokens))
    (finding,) = report.findings
    assert finding.kind == "imbalance"
    truth_ms = float((0.01 * (tokens.max(axis=1) - tokens.mean(axis=1))).mean())
    assert finding.saving_high_ms == pytest.approx(truth_ms, rel=0.1)
    # The same times without the cause, and the cause with other times:
    assert compare(log_ranks({"compute": delays})).uneven is None
    others = np.random.default_rng(7).permutation(tokens)
    assert compare(log_ranks({"compute": delays}, tokens=others)).uneven is None


def test_one_rank_with_longer_batches_is_a_straggler_with_that_cause(tmp_path: Path) -> None:
    tokens = np.random.default_rng(8).integers(100, 200, (100, 2)) + np.array([0, 800])
    report = write(tmp_path, log_ranks({"compute": 0.01 * tokens}, tokens=tokens))
    (finding,) = report.findings
    assert finding.kind == "straggler"
    assert "sort the samples by length" in finding.action
    assert finding.changes


def test_a_straggler_for_another_reason_than_its_batches(tmp_path: Path) -> None:
    tokens = np.random.default_rng(9).integers(100, 1000, (200, 2))
    delays = 0.03 * tokens
    delays[:, 1] += 12
    report = write(tmp_path, log_ranks({"compute": delays}, tokens=tokens))
    assert report.over_fit is not None
    assert report.over_fit.uneven is not None, "sizes explain a part"
    (finding,) = report.findings
    assert (finding.kind, finding.rank) == ("straggler", 1)
    assert "sort the samples" not in finding.action


def test_logs_alone_make_a_report(tmp_path: Path) -> None:
    report = late_since_400(tmp_path)
    assert report.ranks == ()
    assert report.verdict.why.startswith("Straggler: rank 2 is late in 93.2 % of the steps since step 400, by 12.0 ms")
    (finding,) = report.findings
    assert finding.rank == 2
    assert finding.saving_high_ms == pytest.approx(12 * 0.93 * 0.6, rel=0.1)
    text = console_text(report.blocks(), 100)
    assert "Ranks over the whole fit: 995 steps compared" in text
    assert PerfReport.from_json(report.to_json()).over_fit == report.over_fit


def test_ranks_that_ended_early_torn_lines_and_repeated_steps(tmp_path: Path) -> None:
    delays = np.zeros((100, 3))
    delays[:, 1] = 30
    logs = log_ranks({"compute": delays})
    for rank in logs:
        STEPS.replace(tmp_path, rank, *logs[rank])
    STEPS.path(tmp_path, 0).write_bytes(STEPS.encode(*logs[0][:60]) + STEPS.encode(*logs[0][60:])[:200])
    # Rank 1 was resumed at step 40, and repeats ten steps. Rank 2 died at once.
    STEPS.replace(tmp_path, 1, *logs[1][:50], *logs[1][40:])
    STEPS.replace(tmp_path, 2, *logs[2][:8])
    found = lightning_perf.analyze(tmp_path).over_fit
    assert found is not None
    assert [(row.rank, row.last_step) for row in found.ranks] == [(0, 59), (1, 99)]
    assert found.steps == 55
    assert found.straggler is not None
    assert found.straggler.late_ns == 30e6


def test_profiled_steps_do_not_count() -> None:
    delays = np.zeros((100, 2))
    delays[20:60, 0] = 30
    logs = log_ranks({"other": delays})
    logs[1][20:60] = [sample._replace(profiled=True) for sample in logs[1][20:60]]
    found = compare(logs)
    assert (found.steps, found.straggler) == (55, None)


def test_without_the_phases_only_waits_for_batches_are_compared() -> None:
    delays = np.zeros((100, 2))
    delays[:, 1] = 30
    assert compare(log_ranks({"other": delays}, phases=False)).straggler is None
    found = compare(log_ranks({"input": delays}, phases=False))
    assert not found.whole_work
    assert found.ranks[0].compute_ns is None
    assert found.straggler is not None
    assert found.straggler.saving_ns == 30e6


def test_on_a_gpu_a_wait_counts_as_far_as_the_device_waited() -> None:
    delays = np.zeros((100, 2))
    delays[:, 1] = 30
    logs = log_ranks({"input": delays}, phases=False)
    hidden = {rank: [sample._replace(device_ns=sample.step_ns) for sample in log] for rank, log in logs.items()}
    assert compare(hidden).straggler is None
    half = [sample._replace(device_ns=sample.step_ns - 15_000_000) for sample in logs[1]]
    found = compare({0: hidden[0], 1: half}).straggler
    assert found is not None
    assert found.late_ns == 15e6


def test_the_account_names_the_callback() -> None:
    delays = np.zeros((100, 2))
    delays[:, 1] = 30

    def account(rank: int, slow_ns: int) -> FitAccount:
        entries = (AccountEntry("callbacks", "Ema.on_train_batch_end", slow_ns, 100),)
        return FitAccount(1, rank, slow_ns, "returned", None, None, None, 100, 100, None, 1, 0, entries)

    found = compare(log_ranks({"other": delays}), account(0, 10**6), account(1, 3 * 10**9)).straggler
    assert found is not None
    assert (found.place, found.place_ns) == ("Ema.on_train_batch_end", pytest.approx(30e6, rel=0.001))


def test_a_delay_within_the_waits_of_all_for_a_core_names_nobody() -> None:
    delays = np.zeros((100, 2))
    delays[:, 1] = 3

    def waiting(rank: int, core_wait_ms: float) -> FitAccount:
        wait_ns = round(core_wait_ms * 100 * 1e6)
        return FitAccount(1, rank, 0, "returned", None, None, None, 100, 100, None, 1, 0, (), core_wait_ns=wait_ns)

    logs = log_ranks({"compute": delays})
    assert compare(logs, waiting(0, 4), waiting(1, 5)).straggler is None
    # If the others wait for no core, the rank that does is late for a reason of its own.
    assert compare(logs, waiting(0, 0.1), waiting(1, 5)).straggler is not None
    assert compare(logs, waiting(0, 4)).straggler is not None, "the other account is missing"


def test_few_steps_or_one_rank_are_not_compared() -> None:
    logs = {rank: StepSamples.of(log) for rank, log in log_ranks({"input": np.zeros((24, 2))}).items()}
    assert compare_step_logs(logs) is None
    assert compare_step_logs({0: logs[0]}) is None
