"""The callback that ``lightning-perf run`` adds to Trainers."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lightning_perf import PerfCallback
from lightning_perf.callbacks.entry_point import make_callbacks
from lightning_perf.callbacks.perf import InjectedCallback
from lightning_perf.run_files.launch import (
    LAUNCH_VARIABLE,
    NOTES,
    CallbackAdded,
    LaunchSettings,
    MeasurementStarted,
    OwnMeasurement,
)
from tests.callbacks.perf_training import fit
from tests.callbacks.training import loader, make_module, make_trainer, samples


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "notes.jsonl"
    path.touch()
    settings = LaunchSettings(str(path), {"skip_first": 1, "warmup": 0, "active": 2})
    monkeypatch.setenv(LAUNCH_VARIABLE, msgspec.json.encode(settings).decode())
    return path


@pytest.mark.parametrize("value", [None, "", "{", '{"notes": 3}'])
def test_other_processes_get_no_callback(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv(LAUNCH_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(LAUNCH_VARIABLE, value)
    assert make_callbacks() == []


def test_the_entry_point_loads_nothing_else() -> None:
    code = (
        "import sys; from lightning_perf.callbacks.entry_point import make_callbacks; assert make_callbacks() == []; "
        "print({name.partition('.')[0] for name in sys.modules} & {'torch', 'lightning', 'numpy', 'msgspec', 'rich'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


def test_the_callback_measures_and_notes_its_folder(notes: Path, tmp_path: Path) -> None:
    (callback,) = make_callbacks()
    fit(tmp_path, callback=callback)
    assert [row["step"] for row in samples(tmp_path)] == list(range(8))
    # If this package is installed, the Trainer adds a second callback from the entry point, which gives way.
    assert tuple(dict.fromkeys(NOTES.read(notes))) == (CallbackAdded(), MeasurementStarted(str(tmp_path / "perf")))
    assert (tmp_path / "perf" / "report.json").exists()


@pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric"])
def test_lightning_announces_only_callbacks_of_others(
    notes: Path, caplog: pytest.LogCaptureFixture, package: str
) -> None:
    for _ in range(2):
        make_callbacks()
    logger = logging.getLogger(f"{package}.utilities.registry")
    assert len(logger.filters) == 1
    with caplog.at_level(logging.INFO, logger.name):
        for name in ("lightning_perf", "others"):
            logger.info(f"Adding 1 callbacks from entry point '{name}': Callback")
    (kept,) = caplog.records
    assert "'others'" in kept.getMessage()


@pytest.mark.parametrize("first", ["own", "added"])
def test_another_callback_measures_alone(notes: Path, tmp_path: Path, first: str) -> None:
    own = PerfCallback(report="none")
    (added,) = make_callbacks()
    callbacks = [own, added] if first == "own" else [added, own]
    trainer = make_trainer(tmp_path, None, callbacks=callbacks)
    trainer.fit(make_module(), loader(6))
    assert [folder.name for folder in tmp_path.glob("perf*")] == ["perf"]
    assert OwnMeasurement("PerfCallback") in NOTES.read(notes)
    assert not any(isinstance(callback, InjectedCallback) for callback in trainer.callbacks)
    assert own in trainer.callbacks


def test_a_list_of_callbacks_that_two_trainers_share_measures_once(notes: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, None, callbacks=[*make_callbacks(), *make_callbacks()])
    trainer.fit(make_module(), loader(6))
    assert len([note for note in NOTES.read(notes) if isinstance(note, MeasurementStarted)]) == 1
    assert [folder.name for folder in tmp_path.glob("perf*")] == ["perf"]


def test_no_note_is_left_when_the_command_has_ended(notes: Path, tmp_path: Path) -> None:
    (callback,) = make_callbacks()
    notes.unlink()
    fit(tmp_path, callback=callback)
    assert not notes.exists()
