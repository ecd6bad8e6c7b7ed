"""`PerfCallback` in the runs of a study: the study names the folder, and timed runs are not profiled."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lightning_perf import PerfCallback
from lightning_perf.compare.records.record import find_records
from lightning_perf.run_files.run_record import FOLDER_VARIABLE, PLACE_VARIABLE, Place
from tests.callbacks.training import loader, make_module, make_trainer, trace_files

PLACE = Place("s1", "amp", 2, 1, treatment=("precision",))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "study" / "perf"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


def train(tmp_path: Path) -> None:
    callback = PerfCallback(active=1, dirpath=tmp_path / "mine", report="none")
    make_trainer(tmp_path, callback).fit(make_module(), loader(6))


def test_a_timed_run(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE_VARIABLE, msgspec.json.encode(PLACE).decode())
    for _ in range(2):
        train(tmp_path)
    first, second = find_records(tmp_path)
    assert (first.path.parent, first.place) == (folder, PLACE)
    assert (second.path.parent, second.place) == (tmp_path / "study" / "perf_1", None)
    assert first.steps is not None
    assert first.steps.profiled_steps == 0
    assert trace_files(tmp_path) == []
    assert "part of a study" in (folder / "report.json").read_text()


def test_the_warm_up_is_profiled(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up = msgspec.structs.replace(PLACE, block=0)
    monkeypatch.setenv(PLACE_VARIABLE, msgspec.json.encode(warm_up).decode())
    train(tmp_path)
    (record,) = find_records(folder)
    assert record.place == warm_up
    assert len(trace_files(folder)) == 1
