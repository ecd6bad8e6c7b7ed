"""The benchmark of estimates: its verdicts and goals against counts by hand, and a tiny run."""

import argparse
import contextlib
import io
import math
import multiprocessing
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap
from torch import nn

from benchmarks.savings.estimates import (
    ADVICE,
    METHOD,
    Given,
    Measured,
    Profile,
    Row,
    cells,
    earlier,
    goals,
    keep,
    main,
    summary,
)
from benchmarks.savings.fits import BASELINE, Fits, Setting, gain_of, usual_step_s
from benchmarks.savings.networks import ALL, SETS, Network
from benchmarks.step_clock import StepClock
from lightning_perf.estimates.calibration import read_calibration
from lightning_perf.findings.finding import Problem, SavingRange, make_finding
from lightning_perf.findings.whole_run import RULE_IDS
from lightning_perf.statistics.values import Estimate


def row(estimate: tuple[float, float] | None, gain: float, reach: float = 0.01) -> Row:
    share = Given(*estimate, "probed") if estimate is not None else None
    return Row("Net", "bf16-mixed", "cpu-bf16", 200.0, share, Estimate(gain, gain - reach, gain + reach, 0.95, 6, ""))


ROWS = [
    row((0.20, 0.30), 0.25),  # inside, width 1.5
    row((0.20, 0.24), 0.30),  # above, width 1.2
    row((0.20, 0.40), 0.10),  # below, width 2
    row((0.0, 0.10), 0.105),  # cannot be told, infinitely wide
    row((0.10, 0.12), -0.06),  # below, and harmful
    row(None, 0.10),  # missed
    row(None, -0.20),  # rightly not given
    row(None, 0.08, 0.05),  # cannot be told: perhaps below 5 %
]


def test_verdicts() -> None:
    told = "cannot be told"
    verdicts = ["inside", "above", "below", told, "below", "missed", "rightly not given", told]
    assert [each.verdict for each in ROWS] == verdicts
    assert [each.width for each in ROWS[:4]] == [pytest.approx(1.5), pytest.approx(1.2), pytest.approx(2.0), None]


def test_goals() -> None:
    found = goals(ROWS)
    assert (found.given, found.inside, found.outside, found.harmful) == (5, 1, 3, 1)
    assert (found.large, found.advised) == (5, 4), "the certain gains over 5 %: rows 1 to 4 and the missed one"
    assert (found.median_width, found.wide) == (pytest.approx(1.5), math.inf)
    assert "| gains over 5 % that were advised | at least 80 % | 4 of 5 |" in summary(ROWS)
    assert "90th percentile | at most 2.5 | ∞ |" in summary(ROWS)
    assert goals([]).given == 0
    assert "0 of 0" in summary([])


def test_a_row_of_the_table() -> None:
    shown = ("Net", "bf16-mixed", "200.0", "20.0 – 24.0", "probed", "30.0 (29.0 – 31.0)", "**above**", "1.20")
    assert cells(ROWS[1]) == shown
    assert cells(ROWS[6])[3:] == ("–", "–", "-20.0 (-21.0 – -19.0)", "rightly not given", "–")


def test_results_are_kept_and_resumed_and_the_command_reads_them(tmp_path: Path) -> None:
    options = argparse.Namespace(
        results=tmp_path / "out" / "estimates.md", set="seen", rounds=6, resume=True, estimates_only=False
    )
    options.busy = False
    assert earlier(options) == {}
    keep([Measured("Net", METHOD, ROWS, 60.0), Measured("Old", METHOD - 1, [], 1.0)], options)
    assert "1 of 5" in options.results.read_text(encoding="utf-8")
    assert earlier(options) == {"Net": Measured("Net", METHOD, ROWS, 60.0)}, "another method is measured again"
    options.resume = False
    assert earlier(options) == {}
    (total,) = read_calibration([tmp_path]).totals
    assert (total.source, total.count) == ("probed", 1), "one measurement of one rule and network"


def test_estimates_become_shares_of_the_step_without_the_profiler() -> None:
    one = make_finding("cpu-bf16", Problem("", (), "", SavingRange((2e6, 3e6), "")), whole_ns=1e7, rank=0)
    profile = Profile(8.0, {"cpu-bf16": one})
    share = profile.given("cpu-bf16")
    assert share is not None
    assert (share.low, share.high) == (0.25, 0.375)
    assert profile.given("cpu-threads") is None


def test_networks_and_advice() -> None:
    assert len(SETS["seen"]) >= 20
    assert len(SETS["fresh"]) >= 10
    assert len(ALL) == sum(len(SETS[name]) for name in SETS if name != "compiled"), "no network is in two sets"
    assert {setting.rule for setting in ADVICE.values()} <= RULE_IDS


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*num_workers.*", "ignore:.*DataLoader.*")
@pytest.mark.parametrize("setting", [BASELINE, *ADVICE.values()], ids=["baseline", *ADVICE])
def test_settings_start_with_the_same_weights_and_count_samples(setting: Setting) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    torch.manual_seed(0)
    expected = make()
    made: list[nn.Module] = []
    fits = Fits(Network(lambda: made.append(make()) or made[-1], 2, (3, 8, 8)), setting)
    assert fits.has_images()
    assert all(torch.equal(a, b) for a, b in zip(made[0].parameters(), expected.parameters(), strict=True))
    clock = StepClock(1)
    fits.fit(clock, 3)
    assert clock.seconds > 0


def test_gains_of_disturbed_rounds() -> None:
    """Each setting takes 1.5 times as long in four of twelve rounds, not in the same ones."""
    before = [100.0 * (1.5 if number % 3 == 0 else 1.0) for number in range(12)]
    after = [80.0 * (1.5 if number % 3 == 1 else 1.0) for number in range(12)]
    gain = gain_of([before], [after])
    assert (gain.value, gain.n) == (pytest.approx(0.2), 12)
    assert gain.low is not None
    assert gain.high is not None
    assert 0.1 < gain.low <= gain.high < 0.3
    assert gain_of([before[:5]], [after[:5]]).low is None


def test_gains_of_one_process_have_the_interval_of_scipy() -> None:
    generator = np.random.default_rng(1)
    before, after = generator.normal(100.0, 3.0, 20), generator.normal(80.0, 3.0, 20)
    gain = gain_of([before.tolist()], [after.tolist()])

    def quartiles(old: np.ndarray, new: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(1.0 - np.quantile(new, 0.25, axis=axis) / np.quantile(old, 0.25, axis=axis))

    expected = bootstrap((before, after), quartiles, paired=True, method="percentile", rng=2).confidence_interval
    assert (gain.low, gain.high) == (pytest.approx(expected.low, abs=3e-3), pytest.approx(expected.high, abs=3e-3))


def test_processes_that_differ_widen_the_interval() -> None:
    """The baseline takes 110 ms in one of three processes, and the other setting takes 80 ms in all of them."""
    before, after = [[100.0] * 8, [110.0] * 8, [100.0] * 8], [[80.0] * 8] * 3
    gain = gain_of(before, after)
    assert usual_step_s(before) == pytest.approx(310 / 3)
    assert (gain.value, gain.n) == (pytest.approx(1 - 240 / 310), 24)
    # A draw without the slow process is likelier than 2.5 %, and so is one with nothing else.
    assert (gain.low, gain.high) == (pytest.approx(0.2), pytest.approx(1 - 80 / 110))


@pytest.mark.slow
def test_a_tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(command: Sequence[str], *, input: bytes | None, **_: Any) -> subprocess.CompletedProcess[bytes]:
        """Measure a network in this process, which has imported what each process of the benchmark imports."""
        printed = io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setattr(sys, "argv", list(command[2:]))
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input or b"")))
            main()
        return subprocess.CompletedProcess(command, 0, printed.getvalue().encode())

    page = tmp_path / "estimates.md"
    monkeypatch.setattr("benchmarks.processes.subprocess", SimpleNamespace(run=here, PIPE=subprocess.PIPE))
    monkeypatch.setattr("benchmarks.savings.estimates.be_quiet", lambda: warnings.simplefilter("ignore"))
    forks = SimpleNamespace(get_context=lambda _: multiprocessing.get_context("forkserver"))
    monkeypatch.setattr("benchmarks.savings.fits.multiprocessing", forks)
    options = ["--tiny", "--advice=twice the batch", "--results", str(page)]
    for more in ([], ["--estimates-only"]):
        monkeypatch.setattr(sys, "argv", ["estimates", *options, *more])
        with warnings.catch_warnings():
            main()
        assert "| MLP | twice the batch |" in page.read_text(encoding="utf-8")
