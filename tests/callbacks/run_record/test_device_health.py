"""What is seen on a run's GPUs, with a stand-in for NVML."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_perf import PerfCallback
from lightning_perf.callbacks.run_record import device_health
from lightning_perf.callbacks.run_record.device_health import MAX_SAMPLES, PROCESSES_EVERY, DeviceHealth
from lightning_perf.callbacks.run_record.fit_record import LoopRecord
from lightning_perf.callbacks.training_loop import TrainerLoop
from lightning_perf.cli import main
from lightning_perf.compare.engines.block import Device
from lightning_perf.compare.engines.local import parse_devices
from lightning_perf.compare.records.record import RunRecord, find_records
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.run_files.fit.gpu_health import GPU_HEALTH, ClockReason
from lightning_perf.run_files.run_record import FOLDER_VARIABLE, Outcome
from tests.callbacks.training import context, loader, make_module, make_trainer

POWER, THERMAL = 0, 1
IDLE, CLOCKS_SET, POWER_CAP, SLOWDOWN, SW_HOT, HW_HOT, BRAKE = 1, 2, 4, 8, 0x20, 0x40, 0x80


class NVMLError_NotSupported(Exception):  # noqa: N801, N818 (its name in the bindings)
    pass


def _give(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


class FakeNvml(ModuleType):
    """NVML with one answer to each question, for every device; an exception as an answer is raised."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.reasons: Any = IDLE | CLOCKS_SET
        self.pids: Any = [os.getpid()]
        self.init: Any = None
        self.looks = 0
        self.open = 0
        self.energy_mj: Any = 9_000_000
        self.memory_errors = {0: 4, 1: 0}
        self.counted = {POWER: 7_000_000_000, THERMAL: 3_000_000_000}  # of the time since the driver was loaded

    def __getattr__(self, name: str) -> Any:
        if name not in ANSWERS:
            raise AttributeError(name)
        return functools.partial(ANSWERS[name], self)

    def connect(self) -> None:
        _give(self.init)
        self.open += 1

    def disconnect(self) -> None:
        self.open -= 1

    def look(self, handle: str) -> int:
        self.looks += 1
        return int(_give(self.reasons))


ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": FakeNvml.connect,
    "nvmlShutdown": FakeNvml.disconnect,
    "nvmlSystemGetDriverVersion": lambda nvml: "600.0",
    "nvmlDeviceGetHandleByUUID": lambda nvml, uuid: uuid,
    "nvmlDeviceGetCurrentClocksThrottleReasons": FakeNvml.look,
    "nvmlDeviceGetViolationStatus": lambda nvml, _, policy: SimpleNamespace(violationTime=nvml.counted[policy]),
    "nvmlDeviceGetClockInfo": lambda nvml, _, kind: {1: 1500}[kind],  # that of the multiprocessors
    "nvmlDeviceGetMaxClockInfo": lambda nvml, *_: 1980,
    "nvmlDeviceGetPowerUsage": lambda nvml, _: 512_000,
    "nvmlDeviceGetEnforcedPowerLimit": lambda nvml, _: 700_000,
    "nvmlDeviceGetTemperature": lambda nvml, *_: 81,
    "nvmlDeviceGetUtilizationRates": lambda nvml, _: SimpleNamespace(gpu=97),
    "nvmlDeviceGetTotalEnergyConsumption": lambda nvml, _: int(_give(nvml.energy_mj)),
    "nvmlDeviceGetTotalEccErrors": lambda nvml, _, kind, counter: {0: nvml.memory_errors}[counter][kind],
    "nvmlDeviceGetComputeRunningProcesses": lambda nvml, _: [SimpleNamespace(pid=pid) for pid in _give(nvml.pids)],
}


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is no child of ours: its parent has ended."""
    # It must hold no end of our pipes: they would stay open as long as it lives.
    code = (
        "import subprocess; from subprocess import DEVNULL; "
        "print(subprocess.Popen(['sleep', '60'], stdout=DEVNULL, stderr=DEVNULL).pid)"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    yield pid
    os.kill(pid, 9)


class Seen:
    """A watch that looks when a test wants it, without its thread."""

    def __init__(self, uuids: tuple[str, ...] = ("GPU-1",), now_s: Callable[[], float] = lambda: 0.0, **options: Any):
        self.health = DeviceHealth(uuids, now_s=now_s, **options)
        self.health.open()
        self.health.look()

    @property
    def told(self) -> list[tuple[str, bool]]:
        return self.health.news()

    @property
    def failed(self) -> list[str]:
        return [str(error) for error in self.health.errors()]


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (IDLE | CLOCKS_SET, []),
        (0, []),
        (SW_HOT, [("the device was throttled by the driver, too hot", True)]),
        (SLOWDOWN | HW_HOT, [("the device was throttled by its hardware, too hot", True)]),
        (SLOWDOWN | BRAKE, [("the device was throttled by its hardware, power brake", True)]),
        (SLOWDOWN, [("the device was slowed down by its hardware", True)]),
        (POWER_CAP | CLOCKS_SET, [("the device was at its power limit", False)]),
    ],
)
def test_reasons_for_low_clocks(nvml: FakeNvml, reasons: int, told: list[tuple[str, bool]]) -> None:
    nvml.reasons = reasons
    assert Seen().told == told


def test_the_installed_bindings_have_these_numbers() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    numbers = [getattr(pynvml, f"nvmlClocksEventReason{name}") for name in names]
    assert numbers == [POWER_CAP, SLOWDOWN, SW_HOT, HW_HOT, BRAKE]


def test_each_thing_is_told_once_and_the_thread_ends_with_the_fit(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_health, "PERIOD_S", 0.001)
    nvml.reasons = SW_HOT
    health = DeviceHealth(("GPU-1",), rank=3)
    health.start()
    while nvml.looks < 3:
        time.sleep(0.001)
    own = health.finish()
    assert own is not None
    assert (own.rank, own.uuid, own.throttled_share, nvml.open) == (3, "GPU-1", 1.0, 0)
    assert health.news() == [("the device was throttled by the driver, too hot", True)]
    assert health.errors() == []


def test_a_long_training_keeps_few_samples_with_the_same_shares(nvml: FakeNvml) -> None:
    seen = Seen()
    for look in range(1, 4 * MAX_SAMPLES):
        nvml.reasons = SW_HOT if look >= 3 * MAX_SAMPLES else 0
        seen.health.look()
    assert len(seen.health._samples) <= MAX_SAMPLES + 1
    assert seen.health.close().throttled_share == pytest.approx(0.25, abs=0.01)


def test_another_process_is_told_by_name_and_our_own_are_not(nvml: FakeNvml, stranger: int) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        nvml.pids = [os.getpid(), child.pid, stranger]
        seen = Seen()
        assert seen.told == [(f"another process was on the device (sleep, pid {stranger})", True)]
        nvml.pids = [os.getpid(), child.pid]
        assert seen.health.close().other_processes == 1
        seen = Seen()
        assert (seen.told, seen.health.close().other_processes) == ([], 0)
        nvml.pids = [os.getpid(), os.getppid()]
        assert [invalid for _, invalid in Seen().told] == [True]
        assert Seen(siblings=True).told == []
    finally:
        child.kill()
        child.wait()


def test_numbers_of_processes_that_are_not_this_containers_say_nothing(nvml: FakeNvml, stranger: int) -> None:
    for nvml.pids in ([stranger], []):
        seen = Seen()
        assert (seen.told, seen.health.close().other_processes) == ([], None)


def test_several_devices_are_told_apart(nvml: FakeNvml) -> None:
    nvml.reasons = SW_HOT
    told = [words for words, _ in Seen(("GPU-1", "GPU-2")).told]
    assert told == [f"device {number} was throttled by the driver, too hot" for number in (0, 1)]


def test_a_question_that_fails_is_not_asked_again_and_the_other_one_is(nvml: FakeNvml, stranger: int) -> None:
    nvml.reasons = RuntimeError("Not Supported")
    seen = Seen()
    nvml.pids = [os.getpid(), stranger]
    for _ in range(PROCESSES_EVERY):
        seen.health.look()
    assert seen.failed == ["Not Supported"]
    assert len(seen.told) == 1
    nvml.reasons = NVMLError_NotSupported()  # a device that does not answer is no fault
    assert Seen().failed == []


def test_no_driver_is_one_failure_and_no_extra_is_none(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed() -> list[str]:
        health = DeviceHealth(("GPU-1",))
        health.start()
        assert health.finish() is None
        assert health.news() == []
        return [str(error) for error in health.errors()]

    nvml.init = RuntimeError("Driver Not Loaded")
    assert failed() == ["Driver Not Loaded"]
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it then is a ModuleNotFoundError
    assert failed() == []


def gpu_uuids(*devices: torch.device, rank: int = 0) -> list[str]:
    """The GPUs that a rank of a Trainer with these devices watches; the first one is its own."""
    strategy = SimpleNamespace(parallel_devices=sorted(devices, key=str))
    loop: Any = SimpleNamespace(device=devices[0], rank=rank, _trainer=SimpleNamespace(strategy=strategy))
    return TrainerLoop.gpu_uuids(loop)


def test_the_gpus_of_a_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="A100", uuid=f"u{device.index}")
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert gpu_uuids(torch.device("cpu")) == []
    assert gpu_uuids(*two) == ["GPU-u0", "GPU-u1"]
    assert gpu_uuids(*reversed(two), rank=1) == ["GPU-u1"], "its own, and the first rank watches the others"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu_uuids(*two) == []


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
    nvml: FakeNvml, thermal_s: float, power_s: float, told: list[tuple[str, bool]]
) -> None:
    """A training of 100 s whose looks at the clocks find an idle device."""
    now = [50.0]
    seen = Seen(now_s=lambda: now[0])
    now[0] += 100.0
    nvml.counted[THERMAL] += int(thermal_s * 1e9)
    nvml.counted[POWER] += int(power_s * 1e9)
    nvml.reasons = IDLE
    seen.health.close()
    assert seen.told == told
    assert seen.failed == []


def test_the_watch_has_the_state_the_limits_and_the_energy_of_the_own_gpu(nvml: FakeNvml) -> None:
    now = [50.0]
    seen = Seen(("GPU-1", "GPU-2"), now_s=lambda: now[0])
    now[0] += 100.0
    nvml.energy_mj += 51_200_000
    nvml.memory_errors = {0: 5, 1: 2}
    nvml.reasons = SLOWDOWN | HW_HOT
    seen.health.look()
    own = seen.health.close()
    assert (own.uuid, own.watched_s, own.load, own.throttled_share) == ("GPU-1", 100.0, 0.5, 0.5)
    assert own.reasons == (ClockReason("throttled by its hardware, too hot", 0.5, True),)
    assert (own.clock_mhz, own.clock_limit_mhz, own.power_w, own.power_limit_w) == (1500, 1980, 512.0, 700.0)
    assert (own.temperature_c, own.energy_j, own.corrected_errors, own.uncorrected_errors) == (81, 51_200.0, 1, 2)
    assert (own.slowdown_c, own.default_limit_w) == (None, None), "the bindings lack these questions"
    assert ("device 1 had uncorrected memory errors", True) in seen.told
    nvml.energy_mj = NVMLError_NotSupported()  # before Volta
    assert Seen().health.close().energy_j is None


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
    assert gpu_uuids(torch.device("cuda", 0)) == ["MIG-u"]


def test_a_study_runs_on_the_part_of_a_gpu_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2")
    assert parse_devices(None) == (Device("MIG-1", "MIG-1"),)


def train(folder: Path, seed: int = 1) -> RunRecord:
    def validate(self: Any, batch: Any, batch_idx: int) -> None:
        self.log("val_acc", 0.5)

    torch.manual_seed(seed)
    trainer = make_trainer(folder, PerfCallback(active=1, report="none"), max_epochs=2)
    trainer.fit(make_module(validation_step=validate), loader(6), loader(1))
    (record,) = find_records(folder)
    return record


def test_a_throttled_run_is_invalid_from_the_trainer_to_the_exit_code(
    tmp_path: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(TrainerLoop, "gpu_uuids", lambda loop: ["GPU-1"])
    nvml.reasons = POWER_CAP
    well = train(tmp_path / "a" / "1")
    assert (well.outcome, well.problems, well.remarks) == (Outcome.FINISHED, (), ("the device was at its power limit",))
    assert nvml.looks >= 1
    assert nvml.open == 0
    (own,) = GPU_HEALTH.read_all(next((tmp_path / "a" / "1").rglob("gpu.rank0.jsonl")).parent)
    assert (own.reasons, own.energy_j) == ((ClockReason("at its power limit", 1.0, False),), 0.0)
    nvml.reasons = SLOWDOWN | HW_HOT
    hot = train(tmp_path / "b" / "1")
    assert (hot.outcome, hot.problems) == (Outcome.FINISHED, ("the device was throttled by its hardware, too hot",))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 5
    err = capsys.readouterr().err
    assert "b: no valid run to compare (1 invalid: the device was throttled by its hardware, too hot)" in err
    nvml.reasons = IDLE
    train(tmp_path / "b" / "2")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    comparison = Comparison.from_json(capsys.readouterr().out)
    assert comparison.arms[1].left_out == {"invalid: the device was throttled by its hardware, too hot": 1}
    assert "a: in 1 of 1 runs the device was at its power limit." in comparison.notes


def test_another_rank_watches_its_own_gpu_and_leaves_no_record(nvml: FakeNvml, tmp_path: Path) -> None:
    record = LoopRecord(context(tmp_path, device="cuda:1", rank=1, world_size=2, gpu_uuids=lambda: ["GPU-2"]))
    for batch in range(3):
        record.on_batch_start(None, batch)
    assert record.idle == ("on_batch_start",)
    record.ends()
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.rank1.jsonl"]
    (own,) = GPU_HEALTH.read_all(tmp_path)
    assert (own.rank, own.uuid) == (1, "GPU-2")


def test_nvml_that_fails_is_one_warning_and_the_run_is_whole(
    tmp_path: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainerLoop, "gpu_uuids", lambda loop: ["GPU-1"])
    nvml.reasons = nvml.pids = RuntimeError("GPU is lost")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        record = train(tmp_path)
    ours = [str(warning.message) for warning in caught if "PerfCallback" in str(warning.message)]
    assert len(ours) == 1
    assert "not watched" in ours[0]
    assert "GPU is lost" in ours[0]
    assert (record.outcome, record.problems) == (Outcome.FINISHED, ())
