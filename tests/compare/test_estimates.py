"""Estimates of a profiled run of the baseline, checked by the comparison of the arms."""

from pathlib import Path
from typing import Any

import pytest

from lightning_perf import analyze
from lightning_perf.cli import main
from lightning_perf.run_files.estimates import ESTIMATES_NAME, find_outcomes
from lightning_perf.run_files.report import write_report
from tests.compare.support import BASE_MS, write_run
from tests.findings.host_recordings import convolving, on_processor

RATIOS = (0.70, 0.71, 0.69, 0.70, 0.72, 0.68)


def write_arms(folder: Path, **changes: Any) -> tuple[str, str]:
    """Six runs of each arm; the first one of the baseline was profiled and misses a thread."""
    for n, (ms, ratio) in enumerate(zip(BASE_MS, RATIOS, strict=True)):
        shared: dict[str, Any] = {"train__seed": n, "device__threads": 1}
        write_run(folder / "one" / f"run{n}", step_ms=ms, started=2.0 * n, **shared)
        changed = {**shared, "device__threads": 2, **changes}
        write_run(folder / "two" / f"run_{n}", step_ms=ms * ratio, started=2.0 * n + 1, **changed)
    trace = convolving(on_processor(threads=1)).write(folder / "trace.json")
    write_report(folder / "one" / "run0", analyze(trace))
    return str(folder / "one"), str(folder / "two")


def test_the_arms_differ_by_an_advised_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = write_arms(tmp_path)
    for _ in range(2):
        assert main(["compare", *arms, "--treatment", "threads"]) == 0
    (outcome,) = find_outcomes(tmp_path)
    assert (outcome.rule, outcome.setting, outcome.method) == ("cpu-threads", "device.threads 1 → 2", "compare")
    assert outcome.step_ms == pytest.approx(10.0), "the recorded step"
    assert outcome.gain_ms == pytest.approx(10.0 * (1 - 0.70), rel=0.02)
    assert outcome.gain_low_ms is not None
    assert outcome.gain_high_ms is not None
    assert outcome.gain_low_ms < outcome.gain_ms < outcome.gain_high_ms
    assert (tmp_path / "two" / "run_5" / ESTIMATES_NAME).exists()
    capsys.readouterr()


def test_another_difference_checks_nothing(tmp_path: Path) -> None:
    arms = write_arms(tmp_path, train__accumulate=2)
    assert main(["compare", *arms, "--treatment", "threads", "--allow", "accumulate"]) == 0
    assert find_outcomes(tmp_path) == ()


def test_per_sample_for_a_larger_batch(tmp_path: Path) -> None:
    from lightning_perf.compare.folders import checked_estimates, compare_runs
    from lightning_perf.compare.records.record import find_records
    from lightning_perf.compare.verdicts.gates import Settings
    from tests.support.trace_builder import TraceBuilder

    for n, ms in enumerate(BASE_MS):
        write_run(tmp_path / "b32" / f"run{n}", step_ms=ms, started=2.0 * n, train__seed=n)
        more: dict[str, Any] = {"train__batch_size": 64, "data__first_batch": "b2"}
        write_run(tmp_path / "b64" / f"run_{n}", step_ms=1.2 * ms, started=2.0 * n + 1, train__seed=n, **more)
    builder: TraceBuilder = on_processor(threads=1)
    for step in range(3):  # 1 ms of each step of 10 is an operator, and the rest Python between short ones
        for number in range(90):
            builder.op("aten::add_", 10_000 * step + 100 * number, 5, types=["float"], dims=[[32]])
        builder.op("aten::mm", 10_000 * step + 9_000, 990).step(step, 10_000 * step, 10_000)
    write_report(tmp_path / "b32" / "run0", analyze(builder.write(tmp_path / "trace.json")))
    comparison = compare_runs(
        {name: str(tmp_path / name) for name in ("b32", "b64")}, Settings(treatment=("batch_size",))
    )
    runs = {name: find_records(tmp_path / name) for name in ("b32", "b64")}
    (outcome,) = checked_estimates(comparison, comparison.candidates[0], runs, in_study=False)
    assert outcome.rule == "cpu-overhead"
    assert outcome.gain_ms == pytest.approx(10.0 * (1 - 1.2 / 2), rel=0.02), "for as many samples"
