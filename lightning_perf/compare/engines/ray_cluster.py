"""Connect to a Ray cluster, and analyze the recordings of a run on it. Needs the extra ``[ray]``."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_perf.compare.errors import CompareError
from lightning_perf.lazy_imports import import_extra
from lightning_perf.report.recordings import Recording, analyze_recording, decode_recording, encode_recording

__all__ = ["RayRecordings", "connect"]

CONNECT_S = 10.0


def connect(address: str | None = None, *, local_gpus: int | None = None) -> Any:
    """Connect to a Ray cluster, unless this process is already connected.

    Args:
        address: Address of the cluster. None uses ``RAY_ADDRESS``, or else starts a cluster on this machine.
        local_gpus: GPUs to declare if a cluster is started on this machine; None lets Ray find them.

    Returns:
        The module `ray`.

    Raises:
        CompareError: The connection failed, or the cluster rejected the token.
        MissingExtraError: Ray is not installed.
    """
    ray = import_extra("ray", "ray")
    if ray.is_initialized():
        return ray
    named = address or os.environ.get("RAY_ADDRESS")
    if named is not None and (problem := _unreachable(named)) is not None:
        raise CompareError(f"There is no Ray cluster at {named}: {problem}. Start one there, or give another address.")
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
        raise CompareError(f"There is no Ray cluster at {address or 'RAY_ADDRESS'}: {error}.") from error
    return ray


def _unreachable(address: str) -> str | None:
    """Return why nothing answers at ``host:port``, or None. Ray itself would try for minutes without a message."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return None  # Ray resolves "auto" and "local"
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


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
        finally:
            for reference in tasks:
                ray.cancel(reference)  # has no effect on finished tasks


def _analyze(paths: Sequence[str], by_shape: bool) -> bytes:
    """Analyze one recording in a Ray worker."""
    return encode_recording(analyze_recording([Path(path) for path in paths], by_shape=by_shape))
