from __future__ import annotations

from dataclasses import replace

from lightning_perf.analysis.recorded_windows import RecordedWindow
from lightning_perf.analysis.trust import Trust, WindowTrust
from lightning_perf.report.trust_words import trust_line
from lightning_perf.statistics.ranks import Ratio

SOUND = Trust(5, 0, 0, 900, 0, 0, 0)


def window(lasting: float, returned: bool | None, capture: str = "") -> WindowTrust:
    around = Ratio(lasting, lasting - 0.01, lasting + 0.01, 0.95)
    return WindowTrust(
        RecordedWindow(capture, 10, 17, 5, 1, 1, 1), 10, 11, 10, Ratio(1.1, 1.08, 1.12, 0.95), around, returned, 5
    )


def test_what_is_missing_is_counted() -> None:
    assert trust_line(SOUND) == "5 of 5 steps whole, no event lost, every kernel has its launch."
    doubtful = Trust(5, 1, 12, 1000, 10, 2, 1)
    assert trust_line(doubtful) == (
        "4 of 5 steps whole, 12 events lost, 1 recording cut short, no device work in 2 recordings of a GPU's run, "
        "99.0 % of 1,000 kernels have their launch."
    )


def test_a_recording_without_step_marks_has_no_steps_to_count() -> None:
    assert trust_line(Trust(0, 0, 0, 0, 0, 0, 0)) == "No event lost."


def test_whether_the_step_time_came_back() -> None:
    for returned, words in (
        (True, "was back"),
        (False, "did not come back"),
        (None, "cannot be told"),
    ):
        line = trust_line(replace(SOUND, windows=(window(1.05, returned),)))
        assert "Steps under the profiler took 1.10×" in line
        assert f"{words}: 1.05× (95 % interval 1.04× to 1.06×)." in line


def test_the_worst_scheduled_window_speaks() -> None:
    windows = (window(1.0, True), window(1.2, False), window(1.9, False, "slow-step-9"))
    assert "did not come back: 1.20×" in trust_line(replace(SOUND, windows=windows))


def test_costs() -> None:
    line = trust_line(replace(SOUND, cost_ns=120_000_000, cost_share=0.012, analysis_ns=2_000_000_000))
    assert line.endswith("The profiler cost 120 ms, 1.2 % of the run. The analysis took 2.00 s.")
