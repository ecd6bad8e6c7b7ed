"""Watches a run's GPUs through NVIDIA's management library: clocks, heat, power, energy, and other processes.

Needs the extra ``[nvml]``; without it, or without an NVIDIA GPU, nothing is watched.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch

from lightning_perf.callbacks.background import PATIENCE_S, BackgroundThread
from lightning_perf.machine.environment import nvml_uuid
from lightning_perf.machine.processor import process_counters
from lightning_perf.run_files.fit.gpu_health import (
    HARDWARE_SLOWDOWN,
    POWER_CAP,
    REMARKABLE,
    TROUBLE,
    ClockReason,
    GpuHealth,
)

PERIOD_S = 2.0
"""Seconds between two looks: a look takes about a millisecond of a thread of its own, mostly in the driver."""

PROCESSES_EVERY = 5
"""Looks between two that also list the processes."""

MAX_SAMPLES = 256
"""Samples kept. When they are full, every second one is dropped, and their distance doubles."""

COUNTED = {
    "heat_limited_s": ("slowed down by heat", 0.01, True),
    "power_limited_s": ("held back by its power limit", 0.05, False),
}
"""Time that NVML counts (``nvmlPerfPolicyType_t``): words for it, the share of the run from which on it is said, and
whether it makes the run's times invalid. Looks at the clocks miss what happens between them."""

UNANSWERED = ("NVMLError_NotSupported", "NVMLError_NoPermission", "NVMLError_FunctionNotFound", "AttributeError")
"""Errors of a GPU, a part of one, or older bindings, that do not answer a question. That is no fault: the question is
left out."""

IDLE, CLOCK_SETTING, SPECIFIC_SLOWDOWNS = 0x01, 0x02, 0x40 | 0x80

LEAST_BUSY = 0.5
"""Share of the time before a sample in which kernels ran, from which on the GPU counts as under load."""

LOWERED_BY_W = 1.0
"""A power limit counts as lowered if it is below the default by more than this."""

Questions: TypeAlias = Mapping[str, Callable[[Any, Any], float]]
"""Functions of NVML and a GPU's handle, by the name of the figure."""


def _clock_reasons(nvml: Any, gpu: Any) -> int:
    # The older of two names, which drivers before 535 know as well; newer bindings may drop it.
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
    reasons = int((ask or nvml.nvmlDeviceGetCurrentClocksEventReasons)(gpu))
    # The general reason is set as well next to a specific one, and says less.
    return reasons & ~HARDWARE_SLOWDOWN if reasons & SPECIFIC_SLOWDOWNS else reasons


STATE: Questions = {
    "reasons": _clock_reasons,
    "clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, 1),  # NVML_CLOCK_SM
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0),  # NVML_TEMPERATURE_GPU
    "busy": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
}
LIMITS: Questions = {
    "max_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, 1),
    "set_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetApplicationsClock(gpu, 0),  # NVML_CLOCK_GRAPHICS
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "default_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
    "slowdown_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperatureThreshold(gpu, 1),  # …_THRESHOLD_SLOWDOWN
}
COUNTERS: Questions = {
    "energy_j": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
    "power_limited_s": lambda nvml, gpu: nvml.nvmlDeviceGetViolationStatus(gpu, 0).violationTime / 1e9,
    "heat_limited_s": lambda nvml, gpu: nvml.nvmlDeviceGetViolationStatus(gpu, 1).violationTime / 1e9,
    # Since the driver was loaded: NVML_VOLATILE_ECC.
    "uncorrected_errors": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, 1, 0),
    "corrected_errors": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, 0, 0),
}


class Gpu:
    """A GPU, or a part of one, that NVML finds by its unique name. A question that fails is not asked again."""

    def __init__(self, nvml: Any, uuid: str, fail: Callable[[BaseException], None]) -> None:
        self.uuid = uuid
        self.handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._nvml = nvml
        self._fail = fail
        self._failed: set[str] = set()
        try:  # clocks, limits and counters of a MIG instance are those of the whole GPU
            self._whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self.handle)
        except Exception:  # it is a whole GPU already, or the bindings are old
            self._whole = self.handle

    def ask(self, questions: Questions) -> dict[str, Any]:
        """Return the answers that the whole GPU gives."""
        return {name: answer for name in questions if (answer := self._ask(name, questions[name])) is not None}

    def process_ids(self) -> list[int]:
        """Return the processes on it, or on this part of it."""
        found = self._ask("processes", lambda nvml, _: nvml.nvmlDeviceGetComputeRunningProcesses(self.handle))
        return [int(process.pid) for process in found or ()]

    def _ask(self, name: str, question: Callable[[Any, Any], Any]) -> Any:
        if name in self._failed:
            return None
        try:
            return question(self._nvml, self._whole)
        except Exception as error:
            self._failed.add(name)
            if type(error).__name__ not in UNANSWERED:  # virtual GPUs answer some questions and not others
                self._fail(error)
            return None


class DeviceHealth:
    """Watches GPUs of a run from a thread, which does not keep the process alive.

    Args:
        uuids: NVML's names for them. The first one is that of the rank.
        siblings: Whether other processes of the same training may use them.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        *,
        rank: int = 0,
        siblings: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._uuids = uuids
        self._rank = rank
        self._family = os.getppid() if siblings else os.getpid()
        self._now_s = now_s
        self._said: set[str] = set()
        self._news: deque[tuple[str, bool]] = deque()
        self._errors: deque[BaseException] = deque()
        self._nvml: Any = None
        self._gpus: list[Gpu] = []
        self._before: list[dict[str, float]] = []
        self._began_s = now_s()
        self._looks = 0
        self._distance = 1
        self._samples: list[dict[str, Any]] = []
        self._strangers: set[int] | None = None
        self._health: GpuHealth | None = None
        self._looking = BackgroundThread(self._run(), "lightning_perf device")

    def start(self) -> None:
        """Start to look once per period."""
        self._looking.start()

    def finish(self) -> GpuHealth | None:
        """Look no longer, and return the health of the rank's own GPU; None if nothing was watched."""
        self._looking.stop(PATIENCE_S)
        return self._health

    def news(self) -> list[tuple[str, bool]]:
        """Return new observations: words for each, and whether it makes the times of the run invalid."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def errors(self) -> list[BaseException]:
        """Return new errors; the watch does without the question that failed."""
        return [self._errors.popleft() for _ in range(len(self._errors))]

    def _run(self) -> Generator[float, None, None]:
        try:
            if self.open():
                with suppress(GeneratorExit):
                    while True:
                        self.look()
                        yield PERIOD_S
                self._health = self.close()
        except Exception as error:  # no driver, no such device, no permission
            self._errors.append(error)
        finally:
            if self._nvml is not None:
                with suppress(Exception):
                    self._nvml.nvmlShutdown()

    def open(self) -> bool:
        """Connect to NVML, and read the counters; return whether that is possible."""
        try:
            import pynvml
        except ImportError:
            return False
        pynvml.nvmlInit()
        self._nvml = pynvml
        self._gpus = [Gpu(pynvml, uuid, self._errors.append) for uuid in self._uuids]
        self._before = [gpu.ask(COUNTERS) for gpu in self._gpus]
        self._began_s = self._now_s()
        return True

    def look(self) -> None:
        """Look at all GPUs now."""
        for number, gpu in enumerate(self._gpus):
            state = gpu.ask(STATE)
            if number == 0 and self._looks % self._distance == 0:
                self._samples.append(state)
            for bit, words in (TROUBLE | REMARKABLE).items():
                if state.get("reasons", 0) & bit:
                    self._say(f"{self._name(number)} was {words}", invalid=bit in TROUBLE)
            if self._looks % PROCESSES_EVERY == 0:
                self._see_processes(number, gpu.process_ids())
        self._looks += 1
        if len(self._samples) > MAX_SAMPLES:
            self._samples = self._samples[::2]
            self._distance *= 2

    def close(self) -> GpuHealth:
        """Read the counters again, and return the health of the rank's own GPU."""
        watched_s = self._now_s() - self._began_s
        counted = [
            {name: max(after - before[name], 0) for name, after in gpu.ask(COUNTERS).items() if name in before}
            for gpu, before in zip(self._gpus, self._before, strict=True)
        ]
        for number, counts in enumerate(counted):
            self._say_counts(self._name(number), counts, watched_s)
        own, limits = self._gpus[0], self._gpus[0].ask(LIMITS)
        kept = {name: counted[0].get(name) for name in ("energy_j", "uncorrected_errors", "corrected_errors")}
        facts: dict[str, Any] = summarize(self._samples, limits) | kept
        facts["other_processes"] = None if self._strangers is None else len(self._strangers)
        return GpuHealth(self._rank, own.uuid, round(watched_s, 3), **facts)

    def _name(self, number: int) -> str:
        return "the device" if len(self._gpus) == 1 else f"device {number}"

    def _see_processes(self, number: int, pids: Sequence[int]) -> None:
        strangers = [pid for pid in pids if not _descends(pid, self._family)]
        if len(strangers) == len(pids):
            return  # not even ours: a container, in which processes have other numbers than the driver's
        if number == 0:
            self._strangers = (self._strangers or set()).union(strangers)
        for pid in strangers:
            self._say(f"another process was on {self._name(number)} ({_program(pid)}, pid {pid})", invalid=True)

    def _say_counts(self, name: str, counts: Mapping[str, float], watched_s: float) -> None:
        for policy, (words, least, invalid) in COUNTED.items():
            share = min(counts.get(policy, 0.0) / watched_s, 1.0) if watched_s > 0 else 0.0
            if share >= least:
                self._say(f"{name} was {words} for {share:.0%} of the training", invalid=invalid)
        if counts.get("uncorrected_errors"):
            self._say(f"{name} had uncorrected memory errors", invalid=True)

    def _say(self, words: str, *, invalid: bool) -> None:
        if words not in self._said:
            self._said.add(words)
            self._news.append((words, invalid))


def summarize(samples: Sequence[Mapping[str, Any]], limits: Mapping[str, float]) -> dict[str, Any]:
    """Return the fields of `GpuHealth` about the state of a GPU, from samples of `STATE` and its `LIMITS`."""
    known = [sample for sample in samples if "reasons" in sample]
    # A part of a GPU does not say how busy it is.
    loaded = [each for each in known if each.get("busy", 1.0) >= LEAST_BUSY and not each["reasons"] & IDLE]
    lowered = limits.get("power_limit_w", math.inf) < limits.get("default_limit_w", 0.0) - LOWERED_BY_W
    is_set = any(each["reasons"] & CLOCK_SETTING for each in loaded)
    harmful = sum(TROUBLE) | (POWER_CAP if lowered else 0)
    throttled = [each for each in loaded if each["reasons"] & harmful]
    counts = {bit: sum(bool(each["reasons"] & bit) for each in loaded) for bit in TROUBLE | REMARKABLE}
    reasons = [
        ClockReason((TROUBLE | REMARKABLE)[bit], count / len(known), bool(bit & harmful))
        for bit, count in counts.items()
        if count
    ]
    return {
        "load": len(loaded) / len(known) if known else None,
        "clock_mhz": _median(loaded, "clock_mhz"),
        "clock_limit_mhz": limits.get("set_clock_mhz" if is_set else "max_clock_mhz"),
        "clock_is_set": is_set,
        "throttled_share": len(throttled) / len(known) if known else None,
        "throttled_clock_mhz": _median(throttled, "clock_mhz"),
        "reasons": tuple(sorted(reasons, key=lambda reason: -reason.share)),
        "power_w": _median(loaded, "power_w"),
        "temperature_c": max((each["temperature_c"] for each in samples if "temperature_c" in each), default=None),
        **{name: limits.get(name) for name in ("power_limit_w", "default_limit_w", "slowdown_c")},
    }


def _median(samples: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [sample[name] for sample in samples if name in sample]
    return median(values) if values else None


def device_uuids(devices: Sequence[torch.device]) -> list[str]:
    """Return the unique names of NVIDIA GPUs of this machine; none if one of the devices is another kind."""
    if torch.version.cuda is None or any(device.type != "cuda" for device in devices):
        return []
    return [nvml_uuid(torch.cuda.get_device_properties(device)) for device in devices]


def _descends(pid: int, ancestor: int) -> bool:
    """Whether a process is another or comes from it."""
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        if pid == ancestor:
            return True
        seen.add(pid)
        try:
            pid = int(process_counters(pid)[1])
        except OSError:
            return False
    return False


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"
