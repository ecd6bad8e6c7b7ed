"""Run the blocks of a study on the devices of this machine, or as jobs of SLURM, through submitit."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_perf.compare.engines.block import TICK_S, Device, repeats_lost, run_block
from lightning_perf.errors import CompareError
from lightning_perf.lazy_imports import import_extra
from lightning_perf.run_files import journal

SMI_TIMEOUT_S = 30


def parse_devices(text: str | None) -> tuple[Device, ...]:
    """Parse the value of ``--devices``.

    Args:
        text: ``cpu``, or numbers of GPUs such as ``0,1``, in the order of nvidia-smi. None selects the first GPU that
            this process may use, or the CPU on a machine without GPUs.

    Returns:
        The devices.

    Raises:
        CompareError: This machine lacks the device.

    Example:
        >>> parse_devices("cpu")
        (Device(name='cpu', visible=''),)
    """
    if text == "cpu":
        return (Device("cpu", ""),)
    uuids = _gpu_uuids()
    if text is None:
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
        if wanted.startswith("MIG-"):  # A part of a GPU, which no list of GPUs holds.
            return (Device(wanted, wanted),)
        first = next((uuid for n, uuid in enumerate(uuids) if wanted in (str(n), uuid)), None)
        # Without a visible NVIDIA GPU the run decides by itself: it may find an accelerator of another kind.
        return (Device(first, first) if first is not None else Device("cpu"),)
    devices = []
    for part in text.split(","):
        number = int(part) if part.strip().isdigit() else -1
        if not 0 <= number < len(uuids):
            there = f"GPUs 0 to {len(uuids) - 1}" if uuids else "no GPU that NVML or nvidia-smi sees"
            raise CompareError(f'Unknown device "{part}": this machine has {there}. Give cpu, or numbers such as 0,1.')
        # Use unique IDs, because CUDA may number the GPUs in another order.
        devices.append(Device(uuids[number], uuids[number]))
    return tuple(devices)


class LocalEngine:
    """Runs blocks on devices of this machine.

    Args:
        devices: Each device runs one block at a time. Blocks that run side by side share the host's processors and
            disks, so use one device if data loading could be the bottleneck.
    """

    def __init__(self, devices: Sequence[Device] | None = None) -> None:
        self._devices = tuple(devices) if devices is not None else parse_devices(None)

    @property
    def parallel_blocks(self) -> int:
        """The number of blocks that run at the same time."""
        return len(self._devices)

    def check(self) -> None:
        """Check nothing: `parse_devices` has already found the devices."""

    def run(self, folder: Path, blocks: Sequence[int], tick: Callable[[], None]) -> None:
        """Run blocks until each is over; see `Engine`."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for block in blocks:
            waiting.put(block)
        stop = threading.Event()
        errors: list[BaseException] = []

        def work(device: Device, over: threading.Event) -> None:
            try:
                while not stop.is_set():
                    run_block(folder, waiting.get_nowait(), device, stop)
            except queue.Empty:
                return
            except BaseException as error:
                errors.append(error)
                stop.set()
            finally:
                over.set()

        # Not Thread.join: up to Python 3.12, Ctrl-C during a join makes the next join return at once, although the
        # thread still runs. The program would then end and kill a run that is saving its state.
        running: list[threading.Event] = []
        try:
            for device in self._devices:
                over = threading.Event()
                threading.Thread(target=work, args=(device, over), name=device.name).start()
                running.append(over)
            while alive := [over for over in running if not over.is_set()]:
                alive[0].wait(TICK_S)  # waiting on a finished one would return at once, and the loop would use a core
                tick()
        finally:
            stop.set()
            _wait_for_all(running)
        if errors:
            raise errors[0]


def _wait_for_all(running: Sequence[threading.Event]) -> None:
    """Wait until each thread has ended its run, even if Ctrl-C is pressed again: a run has a limited time to end."""
    interrupted = None
    for over in running:
        while not over.is_set():
            try:
                over.wait(TICK_S)
            except KeyboardInterrupt as error:  # noqa: PERF203 (it waits anyway)
                interrupted = error
    if interrupted is not None:
        raise interrupted


def _gpu_uuids() -> list[str]:
    """Return the unique IDs of the GPUs, in the order of their numbers."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
            return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # not installed, or no driver: nvidia-smi comes with the driver
        return _uuids_of_nvidia_smi()


def _uuids_of_nvidia_smi() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.startswith("GPU-")]


class SlurmEngine:
    """Runs each block as one SLURM job, so that its runs share a device. The study's folder must be on shared storage.

    Args:
        parameters: Parameters of `submitit.AutoExecutor`, e.g. ``timeout_min``, ``gpus_per_node``, ``slurm_partition``.
        cluster: ``slurm``, or ``local`` for processes on this machine, which wait until their device is free.
    """

    def __init__(self, parameters: Mapping[str, Any] | None = None, *, cluster: str = "slurm") -> None:
        self._parameters = dict(parameters or {})
        self._cluster = cluster

    def check(self) -> None:
        """Check that SLURM is available and accepts the parameters.

        Raises:
            CompareError: SLURM is not available, or a parameter is wrong.
            MissingExtraError: submitit is not installed.
        """
        self._executor(Path.cwd())

    def run(self, folder: Path, blocks: Sequence[int], tick: Callable[[], None]) -> None:
        """Run blocks until each is over; see `Engine`."""
        executor = self._executor(folder)
        losses: Counter[int] = Counter()
        jobs = {block: executor.submit(_run_block, str(folder), block) for block in blocks}
        try:
            while jobs:
                time.sleep(TICK_S)
                tick()
                for block, job in list(jobs.items()):
                    if not job.done():
                        continue
                    error = job.exception()
                    del jobs[block]
                    if error is None or journal.read_block(folder, block).over:
                        continue
                    problem = f"its job {job.job_id} was lost ({_summary(error)})"
                    if repeats_lost(folder, block, problem, losses):
                        jobs[block] = executor.submit(_run_block, str(folder), block)
        finally:
            for job in jobs.values():
                job.cancel()

    def _executor(self, folder: Path) -> Any:
        submitit = import_extra("submitit", "slurm")
        try:
            executor = submitit.AutoExecutor(folder=folder / "jobs", cluster=self._cluster)
            executor.update_parameters(name="lightning-perf-study", **self._parameters)
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            raise CompareError(
                f"SLURM cannot be used: {_summary(error)}. Use a machine of the cluster, and check --slurm."
            ) from error
        return executor


def _summary(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip().rstrip(".?") if lines else type(error).__name__


def _run_block(folder: str, block: int) -> None:
    """Run a block in a SLURM job."""
    # Within a job CUDA numbers the devices from 0. SLURM's own numbers identify them on the host.
    gpus = (
        os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or os.environ.get("CUDA_VISIBLE_DEVICES")
    )
    run_block(Path(folder), block, Device(f"gpu-{gpus.replace(',', '-')}" if gpus else "cpu"))
