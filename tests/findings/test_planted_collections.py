"""A training next to half a million objects: the size of the finding against a second timer, and the fix."""

import gc
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")

import lightning_perf
from lightning_perf import PerfCallback
from lightning_perf.findings.finding import Finding
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.fit.account import account_paths, read_account
from tests.callbacks.training import loader, make_module, make_trainer

pytestmark = pytest.mark.slow

STEPS = 120
OBJECTS = 500_000
MADE = 50_000
"""Objects that each step makes and the next one drops. About three steps then cause a full collection, of some 40 ms.
All of them take well over the second from which a finding is worth it."""


@pytest.fixture(autouse=True)
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collections are timed by what their thread computes: while it waits for a core on a busy machine, none runs."""
    monkeypatch.setattr("lightning_perf.callbacks.account.totals.perf_counter_ns", time.thread_time_ns)


class FullCollections:
    """Times full collections by a callback of its own, in the same training."""

    def __init__(self) -> None:
        self.times_ms: list[float] = []
        self._since_ns = 0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._since_ns = time.thread_time_ns()
        elif info["generation"] == 2:
            self.times_ms.append((time.thread_time_ns() - self._since_ns) / 1e6)


def fit(folder: Path, *, objects: int, made: int, freeze: bool = False, cycles: bool = False) -> tuple[PerfReport, Any]:
    """Train, and return the report and the module with its full collections."""

    timed = FullCollections()

    def on_train_start(self: Any) -> None:
        gc.collect()
        gc.freeze()  # the objects of the tests and their libraries
        self.kept = [[number] for number in range(objects)]
        if freeze:
            gc.freeze()
        self.before = gc.get_stats()[2]["collections"]
        gc.callbacks.append(timed)

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        self.made = [[number] for number in range(made)]
        for item in self.made if cycles else ():
            item.append(item)
        return self.loss(batch)

    def on_train_end(self: Any) -> None:
        gc.callbacks.remove(timed)
        self.collections = gc.get_stats()[2]["collections"] - self.before
        self.collect_ms = timed.times_ms
        self.kept = self.made = []

    module = make_module(
        on_train_start=on_train_start, training_step=training_step, on_train_end=on_train_end, kept=[], made=[]
    )
    callback = PerfCallback(report="none", dirpath=folder / "perf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on so small a training
        make_trainer(folder, callback, max_epochs=1).fit(module, loader(STEPS))
    return lightning_perf.analyze(folder / "perf"), module


def pauses(report: PerfReport) -> Finding | None:
    return next((finding for finding in report.fit_findings if finding.kind == "gc-pauses"), None)


def full_ms(report: PerfReport) -> float:
    assert report.fit_time is not None
    return report.fit_time.collections[2].time_ns / 1e6


def was_busy(folder: Path) -> bool:
    """Whether the training waited for a core, so that steps were long for that reason, too."""
    (path,) = account_paths(folder)
    account = read_account(path)
    return account.core_wait_ns is not None and account.core_wait_ns > 0.02 * account.wall_ns


def test_half_a_million_objects_that_full_collections_look_at(tmp_path: Path) -> None:
    report, module = fit(tmp_path / "before", objects=OBJECTS, made=MADE)
    finding = pauses(report)
    assert finding is not None
    assert "gc.freeze() in on_train_start" in finding.action
    assert report.fit_time is not None
    assert OBJECTS <= (report.fit_time.collections[2].objects or 0) <= OBJECTS + 4 * MADE
    assert finding.evidence[0].startswith(f"{module.collections} full collections in steps take ")
    assert finding.saving_high_ms == pytest.approx(sum(module.collect_ms), rel=0.05)
    if not was_busy(tmp_path / "before" / "perf"):
        assert not {found.kind for found in report.findings} & {"cpu-pauses", "growing-steps", "periodic-steps"}
    # The fix saves a part within the range.
    fixed, _ = fit(tmp_path / "after", objects=OBJECTS, made=MADE, freeze=True)
    assert pauses(fixed) is None
    assert full_ms(report) - full_ms(fixed) >= (finding.saving_low_ms or 0.0)


def test_cycles_of_each_step_are_named_as_the_cause(tmp_path: Path) -> None:
    report, _ = fit(tmp_path / "before", objects=0, made=60_000, cycles=True)
    finding = pauses(report)
    assert finding is not None
    assert "gc.freeze() does not help" in finding.evidence[1]


def test_a_healthy_training_has_no_pauses(tmp_path: Path) -> None:
    report, _ = fit(tmp_path, objects=0, made=100)
    assert report.fit_time is not None
    assert len(report.fit_time.collections) == 3
    assert pauses(report) is None
