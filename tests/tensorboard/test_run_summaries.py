"""Titles, step times and verdicts in the list of runs."""

from __future__ import annotations

from pathlib import Path

from lightning_perf.tensorboard.run_summaries import LARGEST_BYTES
from tests.tensorboard.support import asker, write_trace


def test_a_finished_report_gives_step_time_and_verdict(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir)
    assert [tab.json("data/runs")["runs"][0][key] for key in ("step_ns", "verdict")] == [None, None]
    report = tab.json("data/report", run="fit")
    (row,) = tab.json("data/runs")["runs"]
    assert row["step_ns"] == report["ranks"][report["lead"]]["breakdown"]["wall"]["mean_ns"]
    assert row["verdict"] == (report["findings"] or [{"title": report["verdict"]["where"]}])[0]["title"]


def test_a_large_or_damaged_report_has_no_summary(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir)
    tab.json("data/report", run="fit")
    for data in (b"{", b" " * (LARGEST_BYTES + 1)):
        (page,) = logdir.rglob("*.page")
        page.write_bytes(data)
        assert asker(logdir).json("data/runs")["runs"][0]["verdict"] is None


def test_a_run_right_inside_the_log_directory_has_its_name(logdir: Path) -> None:
    write_trace(logdir / "a.pt.trace.json")
    (row,) = asker(logdir).json("data/runs")["runs"]
    assert (row["name"], row["title"]) == (".", logdir.name)
    (row,) = asker(None, logdir_spec=f"one:{logdir}").json("data/runs")["runs"]
    assert (row["name"], row["title"]) == ("one/.", f"one/{logdir.name}")
