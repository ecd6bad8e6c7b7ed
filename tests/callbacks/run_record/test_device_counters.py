"""Time that NVML counts for limits, parts of GPUs (MIG), and questions that a device does not answer."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.run_record.device_health import gpu_uuids
from lightning_perf.compare.engines.block import Device
from lightning_perf.compare.engines.local import parse_devices
from tests.callbacks.run_record.test_device_health import IDLE, FakeNvml, Seen

POWER, THERMAL = 0, 1


class NVMLError_NotSupported(Exception):  # noqa: N801, N818 (its name in the bindings)
    pass


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake: Any = FakeNvml()
    fake.counted = {POWER: 7_000_000_000, THERMAL: 3_000_000_000}  # of the time since the driver was loaded
    fake.nvmlDeviceGetViolationStatus = lambda handle, policy: SimpleNamespace(violationTime=fake.counted[policy])
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    return fake


@pytest.mark.parametrize(
    ("thermal_s", "power_s", "told"),
    [
        (0.0, 0.0, []),
        (0.5, 2.0, []),
        (12.0, 0.0, [("the device was slowed down by heat for 12% of the training", True)]),
        (0.0, 60.0, [("the device was held back by its power limit for 60% of the training", False)]),
        (300.0, 0.0, [("the device was slowed down by heat for 100% of the training", True)]),
    ],
)
def test_counted_time_is_that_of_the_training(
    nvml: Any, thermal_s: float, power_s: float, told: list[tuple[str, bool]]
) -> None:
    """A training of 100 s whose looks at the clocks find an idle device."""
    now = [50.0]
    seen = Seen(now_s=lambda: now[0])
    now[0] += 100.0
    nvml.counted[THERMAL] += int(thermal_s * 1e9)
    nvml.counted[POWER] += int(power_s * 1e9)
    nvml.reasons = IDLE
    seen.health.finish()
    assert seen.told == told
    assert seen.failed == []


def test_a_question_that_a_device_does_not_answer_is_no_fault(nvml: FakeNvml) -> None:
    nvml.reasons = NVMLError_NotSupported()
    seen = Seen()
    seen.health.look()
    assert seen.failed == []


def test_a_part_of_a_gpu_is_asked_by_its_own_name_and_its_clocks_are_the_whole_ones(
    nvml: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def reasons(handle: str) -> int:
        asked.append(handle)
        if handle.startswith("MIG-"):
            raise NVMLError_NotSupported
        return 0x20

    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = reasons
    nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = lambda handle: handle.replace("MIG-", "GPU-of-")
    assert Seen(("MIG-1",)).told == [("the device was throttled by the driver, too hot", True)]
    assert asked == ["GPU-of-1"]
    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", uuid="u")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cuda", 0)))
    assert gpu_uuids(trainer) == ["MIG-u"]


def test_a_study_runs_on_the_part_of_a_gpu_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2")
    assert parse_devices(None) == (Device("MIG-1", "MIG-1"),)


def test_a_fault_of_the_device_watch_does_not_hide_a_later_one() -> None:
    errors = ErrorReporter()
    with pytest.warns(RuntimeWarning, match="not watched"):
        errors.report("the device is not watched", OSError("no driver"), kind="device")
    with pytest.warns(RuntimeWarning, match="no trace"):
        errors.report("there is no trace", OSError("disk full"))
    errors.report("nor a report", OSError("disk full"))  # a warning would be an error here
    assert len(errors.messages) == 3
