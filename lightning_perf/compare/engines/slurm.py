"""Run blocks as SLURM jobs, through submitit. Needs the extra ``[slurm]``."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_perf.compare.engines.block import TICK_S, Device, repeats_lost, run_block
from lightning_perf.errors import CompareError
from lightning_perf.lazy_imports import import_extra
from lightning_perf.run_files import journal


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
            raise CompareError(f"SLURM cannot be used: {_summary(error)}.") from error
        return executor


def _summary(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip().rstrip(".") if lines else type(error).__name__


def _run_block(folder: str, block: int) -> None:
    """Run a block in a SLURM job."""
    # Within a job CUDA numbers the devices from 0. SLURM's own numbers identify them on the host.
    gpus = (
        os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or os.environ.get("CUDA_VISIBLE_DEVICES")
    )
    run_block(Path(folder), block, Device(f"gpu-{gpus.replace(',', '-')}" if gpus else "cpu"))
