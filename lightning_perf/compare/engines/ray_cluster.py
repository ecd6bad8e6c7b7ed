"""The Ray cluster that this process is connected to. Needs the extra ``[ray]``."""

from __future__ import annotations

import os
from typing import Any

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.extras import import_extra

__all__ = ["connect"]


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
