"""Blocks as tasks of a Ray cluster: many devices, many hosts. Needs the extra ``[ray]``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_perf.compare.engines.block import Device, run_block
from lightning_perf.compare.engines.ray_cluster import connect
from lightning_perf.compare.errors import CompareError
from lightning_perf.run_files import journal

__all__ = ["RayEngine"]

TICK_S = 0.5
MAX_LOSSES = 3
"""How often a block is handed out anew after its worker vanished."""

THREADS_VARIABLE = "OMP_NUM_THREADS"


class RayEngine:
    """Runs each block as one task, so that its runs share a device. The study's folder has to be on shared storage.

    Args:
        gpus: GPUs of a run; 0 for runs on processors.
        cpus: Processors of a run.
        address: Of the cluster; None for ``RAY_ADDRESS`` or a cluster of this machine alone.
        local_gpus: GPUs to declare when a cluster of this machine is started; None lets Ray find them.
    """

    def __init__(
        self, *, gpus: int = 1, cpus: int = 1, address: str | None = None, local_gpus: int | None = None
    ) -> None:
        self._gpus = gpus
        self._cpus = cpus
        self._address = address
        self._local_gpus = local_gpus

    def check(self) -> None:
        """Connect, and make sure that one machine has what a run needs: Ray itself would wait for it for ever.

        Raises:
            CompareError: No machine of the cluster has it, or there is no such cluster.
            MissingExtraError: Ray is not installed.
        """
        ray = connect(self._address, local_gpus=self._local_gpus)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(node.get("GPU", 0) >= self._gpus and node.get("CPU", 0) >= self._cpus for node in nodes):
            return
        there = "; ".join(f"{node.get('GPU', 0):.0f} GPUs, {node.get('CPU', 0):.0f} CPUs" for node in nodes) or "none"
        raise CompareError(
            f"No machine of the Ray cluster has {self._gpus} GPUs and {self._cpus} CPUs (there are: {there}). "
            "Ask for fewer with --gpus and --cpus, or connect to another cluster with --ray-address."
        )

    def run(self, folder: Path, blocks: Sequence[int], tick: Callable[[], None]) -> None:
        """Run blocks until each is over; see `Engine`."""
        ray = connect(self._address, local_gpus=self._local_gpus)
        # Ray would repeat a task whose worker died without telling: the journal has to know.
        task = ray.remote(num_gpus=self._gpus, num_cpus=self._cpus, max_retries=0)(_run_block)
        threads = os.environ.get(THREADS_VARIABLE)
        losses = dict.fromkeys(blocks, 0)
        tasks = {task.remote(str(folder), block, threads): block for block in blocks}
        try:
            while tasks:
                ready, _ = ray.wait(list(tasks), timeout=TICK_S)
                tick()
                for reference in ready:
                    block = tasks.pop(reference)
                    try:
                        ray.get(reference)
                    except ray.exceptions.RayTaskError as error:
                        if isinstance(error.cause, (CompareError, OSError)):
                            raise error.cause from error  # its own words, without the worker's traceback
                        raise
                    except ray.exceptions.RayError as error:
                        losses[block] += 1
                        problem = f"its Ray worker was lost ({type(error).__name__})"
                        journal.append(folder, block, journal.Lost(problem))
                        if losses[block] >= MAX_LOSSES:
                            journal.append(folder, block, journal.BlockOver(False, f"{problem} {MAX_LOSSES} times"))
                            continue
                        tasks[task.remote(str(folder), block, threads)] = block
        finally:
            for reference in tasks:
                ray.cancel(reference, force=True)


def _run_block(folder: str, block: int, threads: str | None) -> None:
    """The task."""
    import ray

    # Ray holds every task to one thread; the runs get what they would have had without it.
    if threads is None:
        os.environ.pop(THREADS_VARIABLE, None)
    else:
        os.environ[THREADS_VARIABLE] = threads
    gpus = [str(gpu) for gpu in ray.get_gpu_ids()]
    # Ray sets CUDA_VISIBLE_DEVICES in its workers already.
    run_block(Path(folder), block, Device("-".join(["gpu", *gpus]) if gpus else "cpu"))
