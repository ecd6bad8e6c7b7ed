"""Predictions of a tuning next to the measured gains."""

from __future__ import annotations

import pytest

from lightning_perf.cli import main
from lightning_perf.run_files.estimates import find_outcomes
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune import campaign
from lightning_perf.tune.campaign import checked_estimates
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.result import Outcome, Trial, TuneResult


def trial(lever, outcome, predicted, measured, rule, **fields):
    ratio = None if measured is None else Estimate(measured, measured - 0.05, measured + 0.05, 0.95, 12, "")
    source = None if rule is None else "general"
    return Trial(lever, outcome, None, predicted, ratio, (), rule, **{"source": source, **fields})


def result(*trials):
    one = Estimate(1.0, 0.99, 1.01, 0.95, 12, "")
    fixed = {"noise": one, "kept": (), "combined": None, "confirmed": False, "lines": (), "window_steps": 3}
    times = {"rounds": 12, "seconds": 1.0, "budget_s": 60.0, "interrupted": False, "notes": (), "baseline_ms": 200.0}
    named = {"network": "Net, 12 parameters", "tuning": "tuning 1"}
    return TuneResult(1, "0", Machine("cpu", None, 2, "A CPU"), trials=trials, **fixed, **times, **named)


RESULT = result(
    trial("channels-last", Outcome.KEPT, (0.6, 0.8), 0.7, "cpu-channels-last", source="probed"),
    trial("bf16-mixed", Outcome.SLOWER, (0.5, 0.9), 1.1, "cpu-bf16", on_top_of=("channels-last",)),
    trial("16-mixed", Outcome.SLOWER, (0.5, 0.9), 0.9, "cpu-bf16"),
    trial("workers-1", Outcome.NO_GAIN, (0.4, 0.5), 0.95, "input-bound"),
    trial("workers-2", Outcome.KEPT, (0.4, 0.5), 0.45, "input-bound"),
    trial("workers-4", Outcome.FAILED, (0.4, 0.5), None, "input-bound"),
    trial("fused-optimizer", Outcome.NO_GAIN, None, 0.9, None),
)


def test_shares_become_milliseconds_of_the_unchanged_step():
    found = {outcome.setting: outcome for outcome in checked_estimates(RESULT)}
    assert set(found) == {"channels-last", "bf16-mixed", "workers-2"}, "the fastest of a family counts"
    one = found["channels-last"]
    assert (one.rule, one.source, one.step_ms) == ("cpu-channels-last", "probed", 200.0)
    assert (one.low_ms, one.high_ms) == pytest.approx((40.0, 80.0))
    assert (one.gain_ms, one.gain_low_ms, one.gain_high_ms) == pytest.approx((60.0, 50.0, 70.0))
    assert (one.network, one.machine, one.measurement) == ("Net, 12 parameters", "A CPU", "tuning 1")
    assert found["bf16-mixed"].on_top_of == ("channels-last",)
    assert found["bf16-mixed"].gain_ms == pytest.approx(-20.0)


def test_the_command_stores_them_next_to_the_document(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(campaign, "run_campaign", lambda *_: RESULT)
    assert main(["tune", "any:thing", "--out", str(tmp_path / "tuning")]) == 0
    assert len(find_outcomes(tmp_path)) == 3
    assert main(["tune", "any:thing"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["tuning"], "without --out there is no folder to store them in"
    capsys.readouterr()
