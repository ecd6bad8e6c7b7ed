"""The Ray cluster that this process is connected to. Needs the extra ``[ray]``."""

from __future__ import annotations

import os
import socket
from typing import Any

from lightning_perf.compare.errors import CompareError
from lightning_perf.extras import import_extra

__all__ = ["connect"]

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
