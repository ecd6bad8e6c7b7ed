"""The page of a history: series, changes, trend, and hostile names."""

from typing import Any

import pytest

from lightning_perf.compare.records.fairness import Difference
from lightning_perf.documents import page_json
from lightning_perf.history.document import Baseline, Commit, History, LevelChange, Row, Series
from lightning_perf.statistics.values import Estimate
from tests.page.test_accessibility import violations

DAY_S = 86_400.0


def series(name: str = "gpu-box, H100", **more: Any) -> Series:
    rows = tuple(
        Row(f"abcd{n:08d}", f"Commit {n}", n * DAY_S, 3, 100.0 + 10 * (n >= 6) + n % 3 / 4, 99.0, 112.0,
            110.25 if n >= 6 else 100.25, ("main",) if n == 2 else ())
        for n in range(12)
    )  # fmt: skip
    change = LevelChange(
        row=6, earliest=5, latest=6, before=rows[5].commit, after=rows[6].commit,
        estimate=Estimate(1.1, 1.08, 1.12, 0.95, 12, "t"), worse=True, p=1e-9,
        commits=(Commit("abcd00000005", "Commit 5"), Commit("abcd00000006", "Commit 6")), commit_count=4,
    )  # fmt: skip
    return Series(name, "gpu-box", "H100", (), rows=rows, changes=(change,), noise=0.0031, autocorrelation=0.2, **more)


@pytest.fixture
def history() -> History:
    other = Difference("host.name", ("gpu-box",), ("other-box",), None)
    return History(
        store="perf-history", metric="step_time", quality=None, confidence=0.95, since=None, allowed=(),
        series=(series(differs=()), series("other-box, A100", differs=(other,), note="A remark.")),
        baselines=(Baseline("main", "abcd00000002", 0.0),), notes=("Runs that do not count: 1 failed.",),
    )  # fmt: skip


def test_it_shows_the_document(history: History, open_page: Any) -> None:
    opened = open_page(page_json(history), kind="history")
    shown = opened.page.inner_text("main")
    for text in (
        "History of the step time: 2 changes for the worse, not confirmed, in 24 rows in 2 series.",
        "Possibly worse: the step time changed by +10.0 % (95 % interval +8.0 % to +12.0 %) at abcd00000006",
        "It may have been any row from abcd00000005 to abcd00000006.",
        "Commits in question: 4",
        "because it differs from series 1 in host.name (other-box, there gpu-box)",
        "Rows vary by 0.3 % around their level.",
        "A remark.",
        "Runs that do not count: 1 failed.",
    ):
        assert text in shown, text
    first = opened.texts("#table-rows tbody tr:first-child > *")
    assert first[:4] == ["12", "abcd00000011", "Commit 11", "1970-01-12"]
    assert "110.5" in first
    opened.page.locator("details summary").first.click()
    assert "… 2 earlier" in opened.page.inner_text("main")

    opened.draw_charts()
    traces = opened.page.evaluate("document.querySelector('.chart').data.map(({x, y, mode}) => ({x, y, mode}))")
    (points,) = [trace for trace in traces if trace["mode"] == "markers"]
    assert points["y"] == [row.value for row in history.series[0].rows]
    levels = [trace["y"][0] for trace in traces if trace["mode"] == "lines"]
    assert levels == [100.25, 110.25]
    label = opened.page.locator(".chart").first.get_attribute("aria-label")
    assert "+10.0 % at abcd00000006" in label
    assert violations(opened.page) == []


def test_it_fits_a_phone(history: History, open_page: Any) -> None:
    viewport = {"width": 390, "height": 900}
    opened = open_page(page_json(history), kind="history", viewport=viewport, color_scheme="dark")
    assert violations(opened.page) == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
