"""A Ray cluster: connect to it, and analyze the recordings of a run all over it. Needs the extra ``[ray]``."""

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
    """Connect to a cluster, unless this process is connected already.

    Args:
        address: Of the cluster; None for ``RAY_ADDRESS`` or a cluster of this machine alone, which is started.
        local_gpus: GPUs to declare when a cluster of this machine is started; None lets Ray find them.

    Returns:
        The module `ray`.

    Raises:
        CompareError: There is no such cluster.
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
    """Why nothing answers at ``host:port``, or None: Ray itself would try for minutes, without a word."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return None  # "auto" and "local" are Ray's to find
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


class RayRecordings:
    """Analyses each recording as a task of one processor. The files have to be on storage that all machines see.

    Args:
        address: Of the cluster; None for ``RAY_ADDRESS`` or a cluster of this machine alone.

    Example:
        >>> import lightning_perf
        >>> report = lightning_perf.analyze("/shared/perf", spread=RayRecordings("10.0.0.1:6379"))  # doctest: +SKIP
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    def __call__(self, groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> list[Recording]:
        """Analyse the recordings of a run; see `lightning_perf.report.recordings.analyze_recordings`.

        Raises:
            CompareError: There is no such cluster, or it loses the work again and again.
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
                ray.cancel(reference)  # those that are done are left alone


def _analyze(paths: Sequence[str], by_shape: bool) -> bytes:
    """The task."""
    return encode_recording(analyze_recording([Path(path) for path in paths], by_shape=by_shape))
