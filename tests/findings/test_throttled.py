"""GPUs with low clocks: what is found, and what is not, from hand-made samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import lightning_perf
from lightning_perf.callbacks.run_record.device_health import summarize
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.whole_run import find_in_fit
from lightning_perf.report.document import PerfReport
from lightning_perf.report.sections.page import report_parts
from lightning_perf.report.sections.ranks import over_fit_section
from lightning_perf.run_files.fit.gpu_health import GPU_HEALTH, GpuHealth
from lightning_perf.run_files.steps import STEPS, StepSample
from tests.analysis.ranks.test_whole_fit import log_ranks
from tests.findings.test_host import stalled
from tests.support.known import known
from tests.support.shown import console_text, table_of, texts

NONE, IDLE, SETTING, POWER_CAP, SLOWDOWN, SW_HOT, HW_HOT, BRAKE = 0, 1, 2, 4, 8, 0x20, 0x40, 0x80

STATE = {"power_w": 600.0, "temperature_c": 70.0, "busy": 0.97}
LIMITS = {"max_clock_mhz": 1980.0, "power_limit_w": 700.0, "default_limit_w": 700.0, "slowdown_c": 87.0}
COUNTERS = ("energy_j", "uncorrected_errors", "corrected_errors")


def gpu(*parts: tuple[int, int, float], rank: int = 0, **known: Any) -> GpuHealth:
    """The health of a GPU from samples: how many, their reason and their clock. None takes a limit away."""
    state = {name: known.pop(name, usual) for name, usual in STATE.items()}
    states = [{"reasons": reason, "clock_mhz": clock, **state} for count, reason, clock in parts for _ in range(count)]
    counts = {name: known.pop(name) for name in COUNTERS if name in known}
    limits = {name: limit for name, limit in {**LIMITS, **known}.items() if limit is not None}
    return GpuHealth(rank, f"GPU-{rank}", 2.0 * len(states), **summarize(states, limits), **counts)


def findings(*gpus: GpuHealth) -> list[Finding]:
    return list(find_in_fit(None, gpus=gpus))


HOT = ((40, NONE, 1900.0), (60, HW_HOT, 1190.0))


def test_a_hot_gpu_is_found_with_its_share_its_clock_and_its_temperature() -> None:
    (found,) = findings(gpu(*HOT, temperature_c=91.0))
    assert found.kind == "throttled"
    assert found.title == "Throttled GPU of rank 0: it runs 39.9 % below its clock limit for 60.0 % of the time"
    assert found.evidence[0] == (
        "Rank 0 was throttled by its hardware, too hot, in 60.0 % of the samples. Their median clock is 1,190 MHz of "
        "at most 1,980 MHz, at most 91 °C (slowdown from 87 °C), 600 W of a limit of 700 W (default 700 W)."
    )
    # 0.6 of the time at 0.601 of the clock: with all work limited by it, 0.6 × 0.399 of the time is lost.
    assert "At most 23.9 % of the time is lost" in found.evidence[1]
    assert "cooling" in found.action
    assert (found.severity, found.saving_high_ms) == ("moderate", None)


@pytest.mark.parametrize(
    ("reason", "fix"),
    [(SW_HOT, "cooling"), (HW_HOT, "cooling"), (SLOWDOWN, "power supply"), (BRAKE, "power brake")],
)
def test_the_fix_is_that_of_the_reason(reason: int, fix: str) -> None:
    (found,) = findings(gpu((50, reason, 1000.0), (50, NONE, 1980.0)))
    assert fix in found.action


def test_a_power_limit_below_the_default_is_found_with_both() -> None:
    (found,) = findings(gpu((80, POWER_CAP, 1300.0), (20, NONE, 1900.0), power_limit_w=400.0, power_w=398.0))
    assert "Rank 0 was at its power limit, in 80.0 % of the samples" in found.evidence[0]
    assert "398 W of a limit of 400 W (default 700 W)" in found.evidence[0]
    assert "sudo nvidia-smi -pl 700" in found.action


@pytest.mark.parametrize(
    "healthy",
    [
        pytest.param(gpu((100, IDLE, 345.0), busy=0.0), id="idle at low clocks"),
        pytest.param(gpu((2, POWER_CAP, 1200.0), (98, NONE, 1980.0), power_limit_w=400.0), id="limited for 2 %"),
        pytest.param(gpu((100, POWER_CAP, 1400.0)), id="at the default power limit, as a GPU under full load"),
        pytest.param(gpu((100, POWER_CAP, 1400.0), power_limit_w=400.0, default_limit_w=None), id="default unknown"),
        pytest.param(gpu((50, IDLE, 345.0), (50, NONE, 1200.0), busy=0.2), id="waits for input"),
        pytest.param(gpu((50, NONE, 1980.0), (50, SW_HOT, 600.0), busy=0.2), id="hot, but without load"),
        pytest.param(gpu((100, NONE, 1980.0), corrected_errors=12), id="corrected memory errors"),
        pytest.param(gpu((100, SW_HOT, 1950.0)), id="hot, with the clock at its limit"),
        pytest.param(gpu((100, SETTING, 1380.0), set_clock_mhz=1380.0), id="a set clock"),
        pytest.param(gpu((100, HW_HOT, 900.0), max_clock_mhz=None), id="the limit is unknown"),
        pytest.param(gpu((9, HW_HOT, 900.0)), id="watched for 18 s"),
        pytest.param(gpu(), id="no sample"),
        pytest.param(GpuHealth(0, "GPU-0", 9.0, **summarize([{}, {}], {})), id="nothing answered"),
    ],
)
def test_what_is_no_trouble_is_not_found(healthy: GpuHealth) -> None:
    assert findings(healthy) == []


def test_a_set_clock_is_named_and_is_the_limit() -> None:
    """A throttled GPU whose clock is also set: it lost the difference from the set clock, and not from the highest."""
    hot = gpu((50, SETTING, 1380.0), (50, HW_HOT, 1104.0), set_clock_mhz=1380.0)
    assert hot.lost == pytest.approx(0.5 * (1 - 1104 / 1380))
    (found,) = findings(hot)
    assert "1,104 MHz of a set clock of 1,380 MHz" in found.evidence[0]


def test_throttled_ranks_are_named_the_worst_in_the_title() -> None:
    cool = (100, NONE, 1980.0)
    (found,) = findings(gpu(cool), gpu(*HOT, rank=1), gpu(cool, rank=2), gpu((100, BRAKE, 900.0), rank=3))
    assert found.title.startswith("Throttled GPUs of ranks 1, 3: the slowest runs 54.5 % below")
    assert found.evidence[0].startswith("Rank 3 was throttled by its hardware, power brake, in 100 %")
    assert found.evidence[1].startswith("Rank 1 was")


def test_clocks_and_power_are_those_of_samples_under_load() -> None:
    busy = gpu((60, IDLE, 345.0), (39, NONE, 1900.0), (1, NONE, 1800.0))
    assert (busy.load, busy.clock_mhz, busy.power_w) == (0.4, 1900.0, 600.0)
    assert (busy.throttled_share, busy.throttled_clock_mhz) == (0.0, None)


def analyzed(folder: Path, *gpus: GpuHealth) -> PerfReport:
    for each in gpus:
        GPU_HEALTH.replace(folder, each.rank, each)
    STEPS.append(STEPS.path(folder, 0), *(StepSample(n, 10**8, 10**6, None, 16, False) for n in range(101)))
    return lightning_perf.analyze(folder)


def throttling(folder: Path) -> PerfReport:
    """The report of a fit on a hot GPU."""
    return analyzed(folder, gpu(*HOT, temperature_c=91.0, power_w=512.0))


def test_the_report_has_a_row_per_rank_and_the_energy_of_each_gpu_once(tmp_path: Path) -> None:
    second = gpu(*HOT, rank=1, energy_j=2e6, uncorrected_errors=2, corrected_errors=1)
    shared = replace(second, rank=10, uncorrected_errors=0, corrected_errors=0)
    report = analyzed(tmp_path, gpu((100, POWER_CAP, 1500.0), energy_j=1e6), second, shared)
    assert [each.rank for each in report.gpu_health] == [0, 1, 10]
    # The step log is that of rank 0: 16 samples in each of the 100 steps after the first one.
    assert [each.sample_energy_j for each in report.gpu_health] == [625.0, None, None]
    shown = " ".join(console_text(report.blocks()).split())
    assert "Rank 0: at its power limit in 100 % of the samples" in shown
    assert "Rank 1: 1 memory error, corrected by ECC" in shown
    assert "Rank 0: 625 J per sample" in shown
    assert "Energy of all 2 GPUs: 3.00 MJ" in shown
    (note,) = (note for note in report.notes if "memory error" in note)
    assert note.startswith("The GPU of rank 1 counted 2 uncorrected memory errors during the training")
    assert [finding.kind for finding in report.fit_findings] == ["throttled"]
    assert PerfReport.from_json(report.to_json()).gpu_health == report.gpu_health
    assert table_of(report_parts(report)["gpu_health"], "rank") == table_of(report.blocks(), "rank")


def test_the_energy_of_parts_of_a_gpu_is_not_added(tmp_path: Path) -> None:
    parts = [GpuHealth(rank, f"MIG-{rank}", 20.0, energy_j=1e6) for rank in (0, 1)]
    assert "Energy of all" not in console_text(analyzed(tmp_path, *parts).blocks())


def test_a_damaged_file_is_a_note(tmp_path: Path) -> None:
    GPU_HEALTH.path(tmp_path, 0).write_text('{"rank": "zero"}\n')
    report = analyzed(tmp_path)
    assert report.gpu_health == ()
    assert any("The health of the GPUs is left out" in note for note in report.notes)


def late_rank(folder: Path, *gpus: GpuHealth, late: bool = True) -> PerfReport:
    """Two ranks, of which rank 1 takes 30 ms longer over each batch, and the health of their GPUs."""
    delays = np.zeros((100, 2))
    delays[:, 1] = 30.0 * late
    for rank, log in log_ranks({"compute": delays}).items():
        STEPS.replace(folder, rank, *log)
    for each in gpus:
        GPU_HEALTH.replace(folder, each.rank, each)
    return lightning_perf.analyze(folder)


def straggler_of(report: PerfReport) -> str:
    (found,) = [finding for finding in report.findings if finding.kind == "straggler"]
    return " ".join(found.evidence)


def test_the_gpu_of_a_late_rank_is_shown_beside_the_others(tmp_path: Path) -> None:
    report = late_rank(tmp_path, gpu((100, NONE, 1900.0)), gpu(*HOT, rank=1, temperature_c=91.0))
    assert straggler_of(report).endswith(
        "Its GPU over the fit, with that of rank 0 in brackets: 1,190 MHz under load (1,900), 91 °C at most (70), "
        "600 W under load (600), throttled by its hardware, too hot in 60.0 % of the samples (0 %)."
    )
    rows = texts(table_of(over_fit_section(known(report.over_fit), report.gpu_health), "rank"))
    assert [row[-3:] for row in rows] == [
        ("1,900 of 1,980 MHz", "600 of 700 W", "70 °C"),
        ("1,190 of 1,980 MHz", "600 of 700 W", "91 °C"),
    ]


def test_nothing_is_said_of_gpus_that_are_unknown_or_of_ranks_that_are_on_time(tmp_path: Path) -> None:
    short = gpu((9, HW_HOT, 1190.0), rank=1)  # too few samples
    for number, gpus in enumerate(((), (gpu(*HOT, rank=1),), (gpu(*HOT),), (gpu(*HOT), short))):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert "Its GPU" not in straggler_of(late_rank(folder, *gpus)), gpus
    on_time = tmp_path / "on time"
    on_time.mkdir()
    report = late_rank(on_time, gpu(*HOT), gpu(*HOT, rank=1), late=False)
    assert [finding.kind for finding in report.findings] == []


def test_equal_gpus_of_a_late_rank_are_shown_as_equal(tmp_path: Path) -> None:
    equal = [gpu((100, NONE, 1900.0), rank=rank) for rank in range(2)]
    text = straggler_of(late_rank(tmp_path, *equal))
    assert "1,900 MHz under load (1,900), 70 °C at most (70), 600 W under load (600)." in text


@pytest.mark.parametrize("others", [9, 0, None])
def test_other_programs_on_the_gpu_are_named_with_the_stalls_that_they_may_cause(
    tmp_path: Path, others: int | None
) -> None:
    stalled(6000).write(tmp_path / "rank0.1.pt.trace.json")
    GPU_HEALTH.replace(tmp_path, 0, replace(gpu(), other_processes=others))
    report = lightning_perf.analyze(tmp_path)
    (finding,) = (finding for finding in report.findings if finding.kind == "queued-stalls")
    shown = " ".join(console_text(report.blocks()).split())
    if others:
        assert finding.evidence[-1] == "9 other processes were on the GPU of rank 0 during the training."
        assert any(note.startswith("9 other processes were on the GPU of rank 0. If") for note in report.notes)
        assert "Rank 0: 9 other processes" in shown
    else:
        assert "other process" not in shown.replace("end other processes", "")
