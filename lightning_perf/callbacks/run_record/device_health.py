"""Watches a run's GPUs through NVIDIA's management library for throttling and other processes, which distort times.

Needs the extra ``[nvml]``; without it, or without an NVIDIA GPU, nothing is watched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.machine.environment import nvml_uuid
from lightning_perf.machine.processor import process_counters

PERIOD_S = 10.0
"""Seconds between two looks: a look takes about a millisecond of the host's time, so a ten-thousandth at most."""

INVALIDATING = {
    0x08: "slowed down by its hardware",
    0x20: "throttled by the driver, too hot",
    0x40: "throttled by its hardware, too hot",
    0x80: "throttled by its hardware, power brake",
}
"""Reasons for low clocks that are trouble of the machine: ``nvmlClocksEventReason…`` in NVML's ``nvml.h``."""

REMARKABLE = {
    0x04: "at its power limit",
    0x10: "held to the clock of other GPUs (sync boost)",
}
"""Reasons that are usual for a GPU under full load. They are worth a remark, and belong to the cost of an arm. The
others, idle (1), application clocks (2) and display clocks (256), are no limit or a setting."""

COUNTED = {
    1: ("slowed down by heat", 0.01, True),
    0: ("held back by its power limit", 0.05, False),
}
"""Time that NVML counts (``nvmlPerfPolicyType_t``): words for it, the share of the run from which on it is said, and
whether it makes the run's times invalid. Looks at the clocks miss what happens between them, and the last one finds an
idle GPU."""

UNANSWERED = ("NVMLError_NotSupported", "NVMLError_NoPermission", "NVMLError_FunctionNotFound")
"""Errors of a GPU, or a part of one, that does not answer a question. That is no fault: the question is left out."""

HARDWARE_SLOWDOWN = 0x08
SPECIFIC_SLOWDOWNS = 0x40 | 0x80


class DeviceHealth:
    """Watches the GPUs of a run.

    Args:
        tell: Called once for each thing seen, with words for it and whether it makes the run's times invalid.
        fail: Called when an NVML query fails; the watch then does without it.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        *,
        tell: Callable[[str, bool], None],
        fail: Callable[[BaseException], None],
        siblings: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._fail = fail
        self._family = os.getppid() if siblings else os.getpid()
        self._now_s = now_s
        self._next_s = 0.0
        self._told: set[str] = set()
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._questions: list[Callable[[str, Any], None]] = [self._ask_clocks, self._ask_processes]
        self._began_s = now_s()
        self._counted_at_start: list[dict[int, int]] = []
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
            self._counted_at_start = [self._counters(handle) for handle in self._handles]
        except Exception as error:  # no driver, no such device, no permission
            self._handles = []
            self._fail(error)
            self.close()
        self.look()

    def tick(self) -> None:
        """Look when it is time; costs a look at the clock otherwise."""
        if self._handles and self._now_s() >= self._next_s:
            self.look()

    def look(self) -> None:
        """Look at all devices now."""
        self._next_s = self._now_s() + PERIOD_S
        for number, handle in enumerate(self._handles):
            for question in list(self._questions):
                self._try(question, self._name(number), handle)

    def finish(self) -> None:
        """Look once more, and say for which share of the run NVML counted a limit."""
        self.look()
        elapsed_ns = (self._now_s() - self._began_s) * 1e9
        for number, (handle, start) in enumerate(zip(self._handles, self._counted_at_start, strict=True)):
            counted = self._counters(handle)
            for policy, (words, least, invalid) in COUNTED.items():
                if policy in start and policy in counted and elapsed_ns > 0:
                    share = min((counted[policy] - start[policy]) / elapsed_ns, 1.0)
                    if share >= least:
                        self._say(f"{self._name(number)} was {words} for {share:.0%} of the training", invalid=invalid)

    def close(self) -> None:
        """Let go of NVML. Does nothing the second time."""
        nvml, self._nvml, self._handles = self._nvml, None, []
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except Exception as error:
                self._fail(error)

    def _try(self, question: Callable[[str, Any], None], name: str, handle: Any) -> None:
        try:
            question(name, handle)
        except Exception as error:
            self._questions.remove(question)
            if type(error).__name__ not in UNANSWERED:  # virtual GPUs answer some questions and not others
                self._fail(error)

    def _name(self, number: int) -> str:
        return "the device" if len(self._handles) == 1 else f"device {number}"

    def _counters(self, handle: Any) -> dict[int, int]:
        """Return the nanoseconds that NVML has counted for each limit since the driver was loaded."""
        try:
            whole, ask = self._whole(handle), self._nvml.nvmlDeviceGetViolationStatus
            return {policy: int(ask(whole, policy).violationTime) for policy in COUNTED}
        except Exception:  # older bindings and some devices have no counters: the looks at the clocks remain
            return {}

    def _whole(self, handle: Any) -> Any:
        """Return the handle of the GPU that a MIG instance is a part of: clocks and limits are the whole GPU's."""
        find = getattr(self._nvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", None)
        try:
            return handle if find is None else find(handle)
        except Exception:  # it is a whole GPU already
            return handle

    def _ask_clocks(self, name: str, handle: Any) -> None:
        # The older of two names, which drivers before 535 know as well; newer bindings may drop it.
        ask = getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        reasons = int((ask or self._nvml.nvmlDeviceGetCurrentClocksEventReasons)(self._whole(handle)))
        if reasons & SPECIFIC_SLOWDOWNS:
            reasons &= ~HARDWARE_SLOWDOWN  # set as well then, and says less
        for table, invalid in ((INVALIDATING, True), (REMARKABLE, False)):
            for bit, words in table.items():
                if reasons & bit:
                    self._say(f"{name} was {words}", invalid=invalid)

    def _ask_processes(self, name: str, handle: Any) -> None:
        pids = [int(process.pid) for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        strangers = [pid for pid in pids if not _descends(pid, self._family)]
        if len(strangers) == len(pids):
            return  # not even ours: a container, in which processes have other numbers than the driver's
        for pid in strangers:
            self._say(f"another process was on {name} ({_program(pid)}, pid {pid})", invalid=True)

    def _say(self, words: str, *, invalid: bool) -> None:
        if words not in self._told:
            self._told.add(words)
            self._tell(words, invalid)


def gpu_uuids(trainer: Trainer) -> list[str]:
    """The unique names of the NVIDIA GPUs that a Trainer uses on this machine; none on other devices."""
    strategy = trainer.strategy
    return device_uuids(getattr(strategy, "parallel_devices", None) or [strategy.root_device])


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
