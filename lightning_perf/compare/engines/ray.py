"""Run blocks as tasks on a Ray cluster of many devices and hosts. Needs the extra ``[ray]``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_perf.compare.engines.block import Device, run_block
from lightning_perf.compare.engines.ray_cluster import connect
from lightning_perf.compare.errors import CompareError
from lightning_perf.run_files import journal

TICK_S = 0.5
MAX_LOSSES = 3
"""A block is given up after its worker was lost this many times."""

THREADS_VARIABLE = "OMP_NUM_THREADS"


class RayEngine:
    """Runs each block as one Ray task, so that its runs share a device. The study's folder must be on shared storage.

    Args:
        gpus: GPUs per run; 0 for runs on processors.
        cpus: Processors per run.
        address: Address of the cluster. None uses ``RAY_ADDRESS``, or else starts a cluster on this machine.
        local_gpus: GPUs to declare if a cluster is started on this machine; None lets Ray find them.
    """

    def __init__(
        self, *, gpus: int = 1, cpus: int = 1, address: str | None = None, local_gpus: int | None = None
    ) -> None:
        self._gpus = gpus
        self._cpus = cpus
        self._address = address
        self._local_gpus = local_gpus

    def check(self) -> None:
        """Connect, and check that a machine has enough GPUs and CPUs for a run: Ray would wait for them forever.

        Raises:
            CompareError: No machine of the cluster has enough, or the connection failed.
            MissingExtraError: Ray is not installed.
        """
        ray = connect(self._address, local_gpus=self._local_gpus)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(node.get("GPU", 0) >= self._gpus and node.get("CPU", 0) >= self._cpus for node in nodes):
            return
        there = "; ".join(f"{node.get('GPU', 0):.0f} GPUs, {node.get('CPU', 0):.0f} CPUs" for node in nodes)
        raise CompareError(
            f"No machine of the Ray cluster has {self._gpus} GPUs and {self._cpus} CPUs. "
            f"Its machines have: {there or 'nothing, all are down'}. "
            "Ask for fewer with --gpus and --cpus, or connect to another cluster with --ray-address."
        )

    def run(self, folder: Path, blocks: Sequence[int], tick: Callable[[], None]) -> None:
        """Run blocks until each is over; see `Engine`."""
        ray = connect(self._address, local_gpus=self._local_gpus)
        # Ray would silently repeat a task after its worker died, but the journal must record the loss.
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
                            raise error.cause from error  # its message, without the worker's traceback
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
    """Run a block in a Ray worker."""
    import ray

    # Ray limits every task to one thread. Give the runs the value that they would have without Ray.
    if threads is None:
        os.environ.pop(THREADS_VARIABLE, None)
    else:
        os.environ[THREADS_VARIABLE] = threads
    gpus = [str(gpu) for gpu in ray.get_gpu_ids()]
    # Ray sets CUDA_VISIBLE_DEVICES in its workers already.
    run_block(Path(folder), block, Device("-".join(["gpu", *gpus]) if gpus else "cpu"))
