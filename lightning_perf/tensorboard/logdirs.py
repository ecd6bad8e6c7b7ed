"""The folders that TensorBoard was started with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lightning_perf.tensorboard.local_storage import LocalStorage
from lightning_perf.tensorboard.remote_storage import RemoteStorage
from lightning_perf.tensorboard.storage import Storage

__all__ = ["Root", "read_roots", "roots_of"]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*://")
"""A URL, or fsspec's chain of them (``simplecache::s3://``)."""


@dataclass(frozen=True)
class Root:
    """One folder of runs.

    Attributes:
        group: Name of its runs' group, empty for none.
        storage: The folder.
    """

    group: str
    storage: Storage


def read_roots(logdir: str | None, logdir_spec: str | None) -> tuple[Root, ...]:
    """Read TensorBoard's ``--logdir`` and ``--logdir_spec``.

    Args:
        logdir: One folder or URL.
        logdir_spec: Several, joined by commas, each with a name before it or not: ``before:/logs/a,after:/logs/b``.

    Returns:
        The folders.

    Example:
        >>> [(root.group, root.storage.location) for root in read_roots(None, "a:/logs/x,s3://bucket/y,/logs/q:r")]
        [('a', '/logs/x'), ('', 's3://bucket/y'), ('', '/logs/q:r')]
    """
    if logdir:
        return (Root("", _storage(logdir)),)
    roots = []
    for part in (logdir_spec or "").split(","):
        group, colon, path = part.partition(":")
        if not colon or part.startswith("/") or _URL.match(part):
            group, path = "", part
        if path:
            roots.append(Root(group, _storage(path)))
    return tuple(roots)


def roots_of(context: Any) -> tuple[Root, ...]:
    """The folders of a TensorBoard context, of which any field may be missing."""
    flags = context.flags
    return read_roots(context.logdir or getattr(flags, "logdir", None), getattr(flags, "logdir_spec", None))


def _storage(path: str) -> Storage:
    if path.startswith("file://"):
        return LocalStorage(path[len("file://") :])
    return RemoteStorage(path) if _URL.match(path) else LocalStorage(path)
