"""Verdicts say when the machine was busy with other work."""

from __future__ import annotations

import dataclasses

import pytest

from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.checks import busy_lines
from tests.compare.support import write_arms, write_run


def with_load(runs, **changes):
    return [
        dataclasses.replace(run, **{name: values[n] for name, values in changes.items()}) for n, run in enumerate(runs)
    ]


def test_the_verdict_says_how_much_other_processes_took(tmp_path):
    arms = write_arms(tmp_path)
    arms["fp32"] = with_load(arms["fp32"], other_cpu_share=(0.41, 0.44, 0.5, 0.48, 0.42, 0.45))
    arms["amp"] = with_load(arms["amp"], other_cpu_share=(0.03,) * 6)
    (candidate,) = compare_arms(arms).candidates
    assert next(line for line in candidate.verdict.details if "busy" in line) == (
        "The machine was busy: other processes took 41 to 50 % during fp32 and 3 % during amp of the processors' time."
    )


def test_a_quiet_machine_is_not_mentioned(tmp_path):
    arms = write_arms(tmp_path)
    quiet = {
        name: with_load(runs, other_cpu_share=(0.02,) * 6, cpu_throttled_share=(0.0,) * 6)
        for name, runs in arms.items()
    }
    assert busy_lines(quiet) == busy_lines(arms) == ()


def test_a_cpu_quota_and_throttled_devices_are_said(tmp_path):
    arms = write_arms(tmp_path)
    arms["amp"] = with_load(arms["amp"], cpu_throttled_share=(0.0, 0.31, 0.1, 0.0, 0.0, 0.2))
    arms["amp"].append(write_run(tmp_path / "hot", problems=("the device was throttled by the driver, too hot",)))
    assert busy_lines(arms) == (
        "A CPU quota held the runs back for 0 to 31 % of amp.",
        "Left out as invalid, 1 of 7 runs of amp: the device was throttled by the driver, too hot.",
    )


@pytest.mark.parametrize(("load", "said"), [(7.9, True), (0.4, False)])
def test_older_records_have_the_load_at_their_start(tmp_path, load, said):
    arms = {
        name: with_load(runs, notes=({"load_1min": load, "cpus": 2},) * 6)
        for name, runs in write_arms(tmp_path).items()
    }
    text = "The machine may have been busy: the load was up to 7.9 on 2 processors when runs started "
    text += "(including earlier runs)."
    assert busy_lines(arms) == ((text,) if said else ())
