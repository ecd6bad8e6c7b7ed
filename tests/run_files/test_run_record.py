"""`RunRecorder` and the lines it writes, without a Trainer."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.compare.records.record import find_records, read_record
from lightning_perf.errors import CompareError
from lightning_perf.run_files.run_record import (
    FOLDER_VARIABLE,
    PLACE_VARIABLE,
    RECORD_NAME,
    RUN_RECORD,
    Outcome,
    Place,
    RunRecorder,
    study_folder,
    study_place,
)

PLACE = Place("s1", "fp32", 3, 0, 1, ("precision",))


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.delenv(PLACE_VARIABLE, raising=False)


def test_a_whole_run(tmp_path: Path) -> None:
    clock = Clock()
    recorder = RunRecorder(tmp_path, {"a.b": 1, "a.c": None}, {"host": "h"}, clock)
    clock.now_s = 110.0
    recorder.training_begins()
    recorder.add_facts({"a.c": "late"})
    clock.now_s = 112.5
    recorder.epoch_ends(0, 10, {"val_acc": 0.5, "loss": float("inf"), "text": "x"})
    recorder.health("throttled")
    recorder.health("throttled")
    clock.now_s = 115.0
    recorder.ends(Outcome.FINISHED, peak_device_bytes=7)
    recorder.ends(Outcome.FAILED, error="too late")
    record = read_record(recorder.path)
    assert record.facts == {"a.b": 1, "a.c": "late"}
    assert record.notes == {"host": "h"}
    (epoch,) = record.epochs
    assert (epoch.epoch, epoch.steps, epoch.train_time_s, epoch.metrics) == (0, 10, 2.5, {"val_acc": 0.5, "loss": None})
    assert (record.outcome, record.error, record.train_time_s) == (Outcome.FINISHED, None, 5.0)
    assert (record.peak_device_bytes, record.problems, record.steps) == (7, ("throttled",), None)


def test_runs_have_names_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(20)]
    for folder in folders:
        folder.mkdir()
        RunRecorder(folder, {}, {})
    assert len({record.run_id for record in find_records(tmp_path)}) == 20


@pytest.mark.parametrize("value", [0, -1, 2**64 - 1, True, 1.5, "32-true", None])
def test_facts_keep_their_types(tmp_path: Path, value: object) -> None:
    fact = read_record(RunRecorder(tmp_path, {"x": value}, {}).path).facts["x"]  # type: ignore[dict-item]
    assert fact == value
    assert type(fact) is type(value)


@given(cut=st.integers(0, 10_000))
def test_a_record_cut_anywhere_loses_nothing_but_its_last_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    recorder = RunRecorder(folder, {"x": 1}, {})
    for epoch in range(3):
        recorder.epoch_ends(epoch, epoch, {"val_acc": 0.5})
    recorder.ends(Outcome.FINISHED)
    whole = recorder.path.read_bytes()
    cut %= len(whole) + 1
    recorder.path.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n") + (cut > 0 and whole[cut : cut + 1] == b"\n")  # whole but for its line feed
    if lines == 0:
        with pytest.raises(CompareError, match="its first line is not the start of a run"):
            read_record(recorder.path)
        return
    record = read_record(recorder.path)
    assert [epoch.epoch for epoch in record.epochs] == list(range(min(lines - 1, 3)))
    assert record.outcome is (Outcome.FINISHED if lines == 5 else Outcome.INTERRUPTED)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RunRecorder(tmp_path / "none", {}, {})


def test_the_place_is_that_of_the_studys_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE_VARIABLE, msgspec.json.encode(PLACE).decode())
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "perf"))
    for name in ("perf", "perf_1"):
        (tmp_path / name).mkdir()
    assert (study_folder(), study_place()) == (str(tmp_path / "perf"), PLACE)
    assert read_record(RunRecorder(tmp_path / "perf", {}, {}).path).place == PLACE
    assert read_record(RunRecorder(tmp_path / "perf_1", {}, {}).path).place is None


@pytest.mark.parametrize("text", ["", "no JSON", '{"study": 1}'])
def test_no_place_or_one_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(PLACE_VARIABLE, text)
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert study_place() is None
    assert study_folder() is None


def test_facts_hold_no_addresses(tmp_path):
    recorder = RunRecorder(tmp_path, {"data.pin_memory": f"{[].append}, {len}"}, {})
    recorder.add_facts({"data.sampler": str(object())})
    started, added = RUN_RECORD.read(tmp_path / RECORD_NAME)
    assert started.facts == {"data.pin_memory": "<built-in method append of list object>, <built-in function len>"}
    assert added.facts == {"data.sampler": "<object object>"}
