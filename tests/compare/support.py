"""Records and studies for the tests."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.compare.records.record import RunRecord, read_record
from lightning_perf.compare.study.definition import Study, StudyArm
from lightning_perf.run_files.run_record import (
    RUN_RECORD,
    EpochEnded,
    FactValue,
    HealthSeen,
    Outcome,
    Place,
    RunEnded,
    RunStarted,
)
from lightning_perf.run_files.steps import STEPS, StepSample

FAKE_RUN = Path(__file__).with_name("fake_run.py")

BASE_MS = (100.0, 103.0, 99.0, 101.0, 104.0, 98.0)
AMP_MS = (94.0, 95.9, 93.7, 94.5, 98.1, 92.0)

FACTS: dict[str, FactValue] = {
    "train.seed": 1,
    "train.precision": "32-true",
    "train.batch_size": 32,
    "flags.tf32_cudnn": "tf32",
    "version.torch": "2.15.0",
    "data.manifest": "d1",
    "data.first_batch": "b1",
    "model.initial_weights": "w1",
    "code.revision": "c1",
}


def write_run(
    folder: Path,
    *,
    step_ms: float = 100.0,
    accuracies: tuple[float | None, ...] = (0.7, 0.8, 0.9),
    epoch_s: float = 10.0,
    started: float = 0.0,
    outcome: Outcome | None = Outcome.FINISHED,
    place: Place | None = None,
    problems: tuple[str, ...] = (),
    **facts: Any,
) -> RunRecord:
    """Leave a run in a folder; facts override `FACTS`, with two underscores for the dot in their names."""
    folder.mkdir(parents=True)
    path = folder / "run.jsonl"
    changed = {name.replace("__", "."): value for name, value in facts.items()}
    RUN_RECORD.append(path, RunStarted(folder.name, started, FACTS | changed, place=place))
    for problem in problems:
        RUN_RECORD.append(path, HealthSeen(problem, 1.0))
    for epoch, accuracy in enumerate(accuracies):
        RUN_RECORD.append(path, EpochEnded(epoch, epoch_s * (epoch + 1), 10 * (epoch + 1), {"val_acc": accuracy}))
    if outcome is not None:
        RUN_RECORD.append(path, RunEnded(outcome, epoch_s * len(accuracies), None, 2**30, 2**31))
    steps = [StepSample(n, round(step_ms * 1e6), 0, None, 32, False) for n in range(20)]
    (folder / "steps.rank0.jsonl").write_bytes(STEPS.encode(*steps))
    return read_record(path)


def write_arms(
    folder: Path,
    base: Sequence[float] = BASE_MS,
    candidate: Sequence[float] = AMP_MS,
    *,
    blocked: bool = True,
    **changes: Any,
) -> dict[str, list[RunRecord]]:
    """Leave two arms of runs with these step times, in blocks or apart; further changes are of the candidate."""
    made = {}
    for name, times, facts in (("fp32", base, {}), ("amp", candidate, changes)):
        made[name] = [
            write_run(
                folder / name / f"run{n}",
                step_ms=ms,
                started=2.0 * n + (name == "amp"),
                place=Place("s", name, n, int(name == "amp"), treatment=("precision",)) if blocked else None,
                **{"train__seed": n, "accuracies": (0.7, 0.8, 0.9 + 0.001 * (n % 3)), **facts},
            )
            for n, ms in enumerate(times, start=1)
        ]
    return made


def write_levels(folder: Path, **levels: Sequence[float | None]) -> dict[str, list[RunRecord]]:
    """Leave arms of runs outside of blocks, each with the accuracy of its only epoch."""
    return {
        name: [write_run(folder / f"{name}{n}", accuracies=(level,), train__seed=n) for n, level in enumerate(of_arm)]
        for name, of_arm in levels.items()
    }


def fake_study(**changes: Any) -> Study:
    """Two arms of fake trainings, the second 20 % faster."""
    arms = (fake_arm("fp32"), fake_arm("amp", "--step-ms=8", "--precision=16-mixed"))
    settings: dict[str, Any] = {"arms": arms, "blocks": 2, "treatment": ("precision",), **changes}
    return Study(**settings)


def fake_arm(name: str, *arguments: str) -> StudyArm:
    """An arm that runs the fake training."""
    return StudyArm(name, (sys.executable, str(FAKE_RUN), *arguments))


def fake_gpus(monkeypatch: pytest.MonkeyPatch, uuids: Sequence[str]) -> None:
    """Let NVML see GPUs of these names, and none besides."""
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(uuids),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUUID=lambda number: uuids[number],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
