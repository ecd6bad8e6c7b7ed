"""The embedded engine: this machine, a fresh process a run, the devices side by side."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_perf.compare.engines.block import Device, run_block
from lightning_perf.compare.errors import CompareError

__all__ = ["LocalEngine", "parse_devices"]

TICK_S = 0.5


def parse_devices(text: str | None) -> tuple[Device, ...]:
    """The devices that a user names.

    Args:
        text: ``cpu``, or numbers of GPUs as ``0,1``; None for the first GPU, or the CPU where there is none.

    Returns:
        The devices.

    Raises:
        CompareError: There is no such device.

    Example:
        >>> parse_devices("cpu")
        (Device(name='cpu', visible=''),)
    """
    cpu = Device("cpu", "")
    if text == "cpu":
        return (cpu,)
    uuids = _gpu_uuids()
    if text is None:
        return (Device(uuids[0], "0"),) if uuids else (cpu,)
    devices = []
    for part in text.split(","):
        number = int(part) if part.strip().isdigit() else -1
        if not 0 <= number < len(uuids):
            there = f"GPUs 0 to {len(uuids) - 1}" if uuids else "no GPU that NVML sees"
            raise CompareError(f'There is no device "{part}": this machine has {there}. Give cpu or numbers as 0,1.')
        devices.append(Device(uuids[number], str(number)))
    return tuple(devices)


class LocalEngine:
    """Runs blocks on devices of this machine.

    Args:
        devices: Each runs a block at a time. Blocks that run side by side share the host's processors and disks:
            take one device where data loading could be the bottleneck.
    """

    def __init__(self, devices: Sequence[Device] | None = None) -> None:
        self._devices = tuple(devices) if devices is not None else parse_devices(None)

    def check(self) -> None:
        """Nothing to check: the devices were found when they were named."""

    def run(self, folder: Path, blocks: Sequence[int], tick: Callable[[], None]) -> None:
        """Run blocks until each is over; see `Engine`."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for block in blocks:
            waiting.put(block)
        stop = threading.Event()
        errors: list[BaseException] = []

        def work(device: Device) -> None:
            try:
                while not stop.is_set():
                    run_block(folder, waiting.get_nowait(), device, stop)
            except queue.Empty:
                return
            except BaseException as error:
                errors.append(error)
                stop.set()

        threads = [threading.Thread(target=work, args=(device,), name=device.name) for device in self._devices]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                threads[0].join(TICK_S)
                tick()
        finally:
            stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if errors:
            raise errors[0]


def _gpu_uuids() -> list[str]:
    """The GPUs' unique names, in the order of their numbers."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
            return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # without NVML or a driver there is no GPU to be found by it
        return []
