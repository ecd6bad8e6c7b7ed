"""Keeps a call of a tool inside its limits: the paths that it names, and the files that it opens."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_perf.errors import LocatedError

TIMEOUT_S = 120.0
MEMORY_GB = 4.0
"""Limits of a call by default."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SOURCE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")

_DEVICES = ("/dev/null", "/dev/urandom")
_LISTING = frozenset({"os.listdir", "os.scandir"})
_PROCESSES = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
)
_NETWORK = frozenset({"socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request"})
_CHANGES = frozenset(
    {
        *("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink"),
        *("os.truncate", "os.utime", "shutil.copyfile", "shutil.move", "shutil.rmtree"),
    }
)
"""Audit events of the standard library (docs.python.org/3/library/audit_events.html)."""


class OutsideError(LocatedError):
    """A path or a module is not in the folders of the server."""


def resolve_path(text: str, folders: Sequence[Path]) -> Path:
    """Return the real path of a file or folder that a client named, absolute or relative to any of the folders."""
    names = ", ".join(map(str, folders))
    if not text or "\0" in text or _URL.match(text):
        raise OutsideError(repr(text[:200]), "not a path on this machine", f"Give a path in {names}")
    outside = False
    for folder in folders:
        try:
            path = (folder / text).resolve()
            found = path.exists()
        except (OSError, RuntimeError, ValueError):  # a loop of links, or a name that is too long
            continue
        if not any(path.is_relative_to(allowed) for allowed in folders):
            outside = True
        elif found:
            return path
    problem = "not in the folders of this server" if outside else "no such file or folder"
    raise OutsideError(repr(text[:200]), problem, f"Give a path in {names}. The tool list_runs lists them")


def resolve_source(text: str, folders: Sequence[Path]) -> str:
    """Return ``package.module:name`` if the module is in the folders of the server, and make it importable."""
    match = _SOURCE.fullmatch(text)
    if match is None:
        raise OutsideError(repr(text[:200]), "not a name", "Give package.module:name, e.g. mypackage.training:make")
    top = match["module"].partition(".")[0]
    for folder in folders:
        for place in (folder / f"{top}.py", folder / top):
            if place.exists() and any(place.resolve().is_relative_to(allowed) for allowed in folders):
                sys.path.insert(0, str(folder))
                return text
    raise OutsideError(
        repr(text[:200]),
        f"no folder of this server holds {top}.py or {top}/",
        f"Start the server with --folder at the folder that contains {top}",
    )


def confine_process(folders: Sequence[Path]) -> None:
    """Let this process only read, and only files in some folders and of its own Python, until it ends.

    Links are resolved at the moment when a file is opened. Changing files, starting processes and connecting to other
    machines raise a `PermissionError`.
    """
    sys.dont_write_bytecode = True
    python = {sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]), *filter(None, sys.path)}
    readable = tuple(dict.fromkeys([*map(str, folders), *map(os.path.realpath, python)]))

    def is_readable(path: Any) -> bool:
        if isinstance(path, int):
            return True  # a file that is already open
        real = os.path.realpath(os.fsdecode(path if path is not None else "."))
        return real in _DEVICES or any(real == folder or real.startswith(f"{folder}{os.sep}") for folder in readable)

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int):
                return
            writes = flags is not None and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            if (writes and os.fsdecode(path) not in _DEVICES) or not is_readable(path):
                raise PermissionError(errno.EACCES, "outside the folders of the server", os.fsdecode(path))
        elif event in _LISTING:
            if not is_readable(arguments[0]):
                raise PermissionError(errno.EACCES, "outside the folders of the server", os.fsdecode(arguments[0]))
        elif event in _CHANGES or event in _PROCESSES or event in _NETWORK:
            raise PermissionError(errno.EACCES, f"{event} is not allowed in a read-only tool")

    sys.addaudithook(check)
