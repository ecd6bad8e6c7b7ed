"""Run blocks as tasks on a Ray cluster of many devices and hosts, and analyze recordings on it. Needs ``[ray]``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_perf.compare.engines.block import TICK_S, Device, repeats_lost, run_block
from lightning_perf.errors import CompareError
from lightning_perf.lazy_imports import import_extra
from lightning_perf.report.recording import Recording, analyze_recording, decode_recording, encode_recording

THREADS_VARIABLE = "OMP_NUM_THREADS"

CONNECT_S = 10.0
PROBE_S = 60.0

MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
TOKEN_FILE = Path(".ray") / "auth_token"
"""Below the home folder. Ray reads it in token mode if no variable is set."""

_REJECTED = 77
_PROBE = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1])
except AuthenticationError:
    sys.exit(int(sys.argv[2]))
"""


def connect(address: str | None = None, *, local_gpus: int | None = None) -> Any:
    """Connect to a Ray cluster, unless this process is already connected."""
    if any(map(os.environ.get, TOKEN_VARIABLES)):
        # Ray ignores a token without this mode, and reads the mode when it is imported.
        os.environ.setdefault(MODE_VARIABLE, "token")
    ray = import_extra("ray", "ray")
    if ray.is_initialized():
        return ray
    named = address or os.environ.get("RAY_ADDRESS")
    if named is not None and (problem := _unreachable(named)) is not None:
        raise CompareError(f"No Ray cluster answers at {named}: {problem}. Start one there, or give another address.")
    if named is not None and _rejects_token(named):
        raise CompareError(_token_advice(named))
    own = address is None and "RAY_ADDRESS" not in os.environ
    options: dict[str, Any] = {"num_gpus": local_gpus} if own else {}
    try:
        ray.init(
            address=address or ("local" if own else "auto"),
            include_dashboard=False if own else None,
            log_to_driver=False,
            logging_level="ERROR",
            **options,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CompareError(
            f"The connection to the Ray cluster at {named or 'this machine'} failed: {str(error).rstrip('.')}. "
            "Check the address and the state of the cluster with: ray status"
        ) from error
    except getattr(ray.exceptions, "AuthenticationError", ()) as error:
        raise CompareError(_token_advice(named or "this machine")) from error
    return ray


def _rejects_token(address: str) -> bool:
    """Return whether the cluster at ``host:port`` requires a token that this process does not have.

    `ray.init` would try for 20 seconds and write a line to standard error each second, so ask once before. A process of
    its own asks, because Ray ends the process if the token is missing. Any other problem is left to `ray.init`.
    """
    if _host_and_port(address) is None or "://" in address:
        return False
    probe = [sys.executable, "-c", _PROBE, address, str(_REJECTED)]
    try:
        return subprocess.run(probe, capture_output=True, timeout=PROBE_S, check=False).returncode == _REJECTED
    except (OSError, subprocess.TimeoutExpired):
        return False


def _token_advice(address: str) -> str:
    given = next((name for name in TOKEN_VARIABLES if os.environ.get(name)), None)
    mode = os.environ.get(MODE_VARIABLE, "token")
    if mode.lower() != "token":
        reason = f'{MODE_VARIABLE} is "{mode}"'
    elif given is not None:
        reason = f"the one in {given} is wrong"
    elif MODE_VARIABLE in os.environ and (Path.home() / TOKEN_FILE).exists():
        reason = f"the one in ~/{TOKEN_FILE} is wrong"
    else:
        reason = f"{TOKEN_VARIABLES[0]} is not set"
    return (
        f"The Ray cluster at {address} requires its authentication token, but {reason}. Print the token on the "
        f"cluster's head node with `ray get-auth-token`, then run this command again after: "
        f"export {MODE_VARIABLE}=token {TOKEN_VARIABLES[0]}=TOKEN"
    )


def _unreachable(address: str) -> str | None:
    """Return why nothing answers at ``host:port``, or None. Ray itself would try for minutes without a message."""
    place = _host_and_port(address)
    if place is None:
        return None
    try:
        socket.create_connection(place, CONNECT_S).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _host_and_port(address: str) -> tuple[str, int] | None:
    """Split an address such as ``10.0.0.1:6379``; None for ``auto`` and ``local``, which Ray resolves."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return (host, int(port)) if host and port.isdecimal() else None


@dataclass(frozen=True, kw_only=True)
class RayEngine:
    """Runs each block as one Ray task, so that its runs share a device. The study's folder must be on shared storage.

    Attributes:
        gpus: GPUs per run; 0 for runs on processors.
        cpus: Processors per run.
        address: Address of the cluster. None uses ``RAY_ADDRESS``, or else starts a cluster on this machine.
        local_gpus: GPUs to declare if a cluster is started on this machine; None lets Ray find them.
    """

    gpus: int = 1
    cpus: int = 1
    address: str | None = None
    local_gpus: int | None = None

    def check(self) -> None:
        """Connect, and check that a machine has enough GPUs and CPUs for a run: Ray would wait for them forever.

        Raises:
            CompareError: No machine of the cluster has enough, or the connection failed.
            MissingExtraError: Ray is not installed.
        """
        ray = connect(self.address, local_gpus=self.local_gpus)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(node.get("GPU", 0) >= self.gpus and node.get("CPU", 0) >= self.cpus for node in nodes):
            return
        there = "; ".join(f"{node.get('GPU', 0):.0f} GPUs, {node.get('CPU', 0):.0f} CPUs" for node in nodes)
        raise CompareError(
            f"No machine of the Ray cluster has {self.gpus} GPUs and {self.cpus} CPUs. "
            f"Its machines have: {there or 'nothing, all are down'}. "
            "Ask for fewer with --gpus and --cpus, or connect to another cluster with --ray-address."
        )

    def run(self, folder: Path, blocks: Sequence[int], tick: Callable[[], None]) -> None:
        """Run blocks until each is over; see `Engine`."""
        ray = connect(self.address, local_gpus=self.local_gpus)
        # Ray would silently repeat a task after its worker died, but the journal must record the loss.
        task = ray.remote(num_gpus=self.gpus, num_cpus=self.cpus, max_retries=0)(_run_block)
        threads = os.environ.get(THREADS_VARIABLE)
        losses: Counter[int] = Counter()
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
                        problem = f"its Ray worker was lost ({type(error).__name__})"
                        if repeats_lost(folder, block, problem, losses):
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


class RayRecordings:
    """Analyzes the recordings of a run on a Ray cluster, one task per recording. The files must be on shared storage.

    Args:
        address: Address of the cluster. None uses ``RAY_ADDRESS``, or else starts a cluster on this machine.

    Example:
        >>> import lightning_perf
        >>> report = lightning_perf.analyze("/shared/perf", spread=RayRecordings("10.0.0.1:6379"))  # doctest: +SKIP
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    def __call__(self, groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> list[Recording]:
        """Analyze the recordings of a run; see `lightning_perf.report.recordings.analyze_recordings`.

        Raises:
            CompareError: The connection failed, or the cluster lost the work repeatedly.
            MissingExtraError: Ray is not installed.
        """
        ray = connect(self._address)
        task = ray.remote(num_cpus=1)(_analyze)
        tasks = [task.remote([str(path.absolute()) for path in group], by_shape) for group in groups]
        try:
            return [decode_recording(answer) for answer in ray.get(tasks)]
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            raise CompareError(f"The Ray cluster lost an analysis ({type(error).__name__}): {error}") from error
        # Tasks that are left after an error run to their end. Ray 2.60 aborts this whole process if a task answers
        # while `ray.cancel` marks it as cancelled.


def _analyze(paths: Sequence[str], by_shape: bool) -> bytes:
    """Analyze one recording in a Ray worker."""
    return encode_recording(analyze_recording([Path(path) for path in paths], by_shape=by_shape))
