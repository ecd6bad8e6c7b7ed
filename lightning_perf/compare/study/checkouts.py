"""A run of a study has a device and the checkout of a commit for itself."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from lightning_perf.compare.study.definition import StudyArm
from lightning_perf.errors import CompareError
from lightning_perf.workers.channel import describe_exit, last_lines
from lightning_perf.workers.command import run_command

POLL_S = 0.2


class LeaseTakenError(Exception):
    """Another process holds the lease."""


class Lease:
    """An exclusive lock on a device or a study, used as a context manager.

    A child process that inherits `descriptor` also holds the lock, so a run that outlives its study keeps its device.

    Args:
        folder: Folder of the lock file, created if it does not exist.

    Raises:
        LeaseTakenError: Another process holds the lock, and either `wait` is false or `stop` was set.
    """

    def __init__(self, folder: Path, name: str, *, wait: bool = False, stop: threading.Event | None = None) -> None:
        self._path = folder / f"{name}.lock"
        self._wait = wait
        self._stop = stop
        self.descriptor = -1

    def __enter__(self) -> Lease:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        while not self._take():
            if not self._wait or (self._stop is not None and self._stop.is_set()):
                self._close()
                raise LeaseTakenError(f"{self._path} is held by another process")
            time.sleep(POLL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _take(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _close(self) -> None:
        # Close without unlocking, so that a child with the descriptor keeps the lock.
        os.close(self.descriptor)
        self.descriptor = -1


def device_leases() -> Path:
    """Return the folder of this user's device locks on this machine, which all studies share."""
    return Path(tempfile.gettempdir()) / f"lightning-perf-leases-{os.getuid()}"


SOURCES = ("", "src")
"""Folders of a checkout from which its commands import packages."""

PACKAGES = ("site-packages", "dist-packages")
"""Names of the folders that hold installed packages."""

_SCRIPT = """#!/bin/sh
exec "{python}" -c "import sys
from importlib.metadata import entry_points
sys.argv[0] = '{name}'
(script,) = {{*entry_points(group='console_scripts', name='{name}')}}
sys.exit(script.load()())" "$@"
"""


def resolve_commit(option: str, ref: str) -> str:
    """Return the hash of a branch, a tag or a hash in the repository of the current folder.

    For a branch that exists only on the remote ``origin``, its name is enough.
    """
    root = _git("rev-parse", "--show-toplevel")
    if root is None:
        raise CompareError(f"{Path.cwd()}: not in a git repository. Change to a folder of your repository.")
    for name in (ref, f"origin/{ref}"):
        commit = None if ref.startswith("-") else _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if commit is not None:
            return commit
    raise CompareError(
        f"{option} '{ref}': the repository {root} has no such commit. Check its name. If your clone is shallow, fetch "
        f"it first: git fetch origin {ref}"
    )


def has_uncommitted_changes() -> bool:
    """Return whether tracked files of the current repository differ from its last commit."""
    return bool(_git("status", "--porcelain", "--untracked-files=no"))


@contextmanager
def open_checkouts(
    folder: Path, commits: Mapping[str, str], arms: Sequence[StudyArm], *, setup: str | None, say: Callable[[str], None]
) -> Iterator[tuple[StudyArm, ...]]:
    """Check out the commit of each arm, and remove the checkouts when the block ends.

    The arms then run in their checkouts, in the same subfolder as the current one. With `setup`, each checkout gets a
    virtual environment that also sees the packages of the current one. So ``pip install`` changes the environment of
    one checkout only.
    """
    folder = folder.absolute()
    subfolder = _git("rev-parse", "--show-prefix") or ""
    places = {name: folder / "checkouts" / f"{name}-{commit[:12]}" for name, commit in commits.items()}
    environments = {name: folder / "checkouts" / f"environment-{name}" for name in commits}
    try:
        # Another gate in this folder would remove the checkouts while this one uses them.
        with Lease(folder, "checkouts"):
            try:
                placed = []
                for arm in arms:
                    _remove(places[arm.name], environments[arm.name])
                    _add(places[arm.name], commits[arm.name])
                    placed.append(_place(arm, commits[arm.name], places[arm.name], subfolder))
                if setup is not None:
                    for number, arm in enumerate(placed):
                        say(f"setup of {arm.name}: {setup}")
                        scripts = make_environment(environments[arm.name])
                        placed[number] = _set_up(arm, setup, scripts, folder / f"setup-{arm.name}.log")
                yield tuple(placed)
            finally:
                for name in commits:
                    _remove(places[name], environments[name])
    except LeaseTakenError as error:
        raise CompareError(
            f"{folder}: another lightning-perf gate uses this folder. Wait for it to end, or give another --out."
        ) from error


def make_environment(folder: Path) -> Path:
    """Make a virtual environment that also sees the packages and the commands of the current one.

    Packages that are installed into it take precedence, and the current environment stays unchanged.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    python = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    outer = [path for path in sys.path if Path(path).name in PACKAGES]
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in outer)
    # Python reads these files in the order of their names, and this one has to come last.
    (folder / "lib" / version / "site-packages" / "zz_outer_environment.pth").write_text(lines, encoding="utf-8")
    # A command of the outer environment, such as pip, would start the outer Python.
    for name in {script.name for script in entry_points(group="console_scripts")}:
        script = python.with_name(name)
        if not script.exists():
            script.write_text(_SCRIPT.format(python=python, name=name), encoding="utf-8")
            script.chmod(0o755)
    return python.parent


def _add(place: Path, commit: str) -> None:
    # A checkout that was deleted by hand is still registered, so this needs --force.
    command = ["git", "worktree", "add", "--detach", "--force", str(place), commit]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        problem = " | ".join(done.stderr.strip().splitlines()[-2:])
        raise CompareError(f"{place}: the commit {commit[:12]} cannot be checked out there ({problem}).")


def _remove(place: Path, environment: Path) -> None:
    shutil.rmtree(environment, ignore_errors=True)
    if place.exists():
        _git("worktree", "remove", "--force", "--force", str(place))
        shutil.rmtree(place, ignore_errors=True)


def _place(arm: StudyArm, commit: str, place: Path, subfolder: str) -> StudyArm:
    folder = place / subfolder
    if not folder.is_dir():
        raise CompareError(
            f"The commit {commit[:12]} of {arm.name} has no folder '{subfolder}'. Run the command in a folder that "
            "both commits have."
        )
    sources = tuple(str(place / source) for source in SOURCES if (place / source).is_dir())
    return replace(arm, folder=str(folder), search_paths={"PYTHONPATH": sources})


def _set_up(arm: StudyArm, setup: str, scripts: Path, log: Path) -> StudyArm:
    variables = {"PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}", "VIRTUAL_ENV": str(scripts.parent)}
    with log.open("w+b") as stream:
        code = run_command(
            ["sh", "-ec", setup],
            folder=str(arm.folder),
            environment={**os.environ, **variables},
            log=stream,
        )
        if code:
            raise CompareError(
                f"--setup: the command {describe_exit(code)} for {arm.name}, see {log}: {last_lines(stream)}"
            )
    return replace(arm, search_paths={**arm.search_paths, "PATH": (str(scripts),)})


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise CompareError(
            f"git cannot be started ({error.strerror}). Install git, and make sure it is on PATH."
        ) from error
    return done.stdout.strip() if done.returncode == 0 else None
