"""The revision of the running code: the commit, and later changes. Unlike `environment` it does not need torch."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

GIT_TIMEOUT_S = 10


def git_revision(folder: Path | None = None) -> str | None:
    """Return the commit of a folder, by default that of the running script; None outside a repository or without git.

    Uncommitted changes to tracked files are added as a hash: ``<commit>+<hash>``.
    """
    if folder is None:
        script = Path(getattr(sys.modules.get("__main__"), "__file__", None) or "")
        folder = script.resolve().parent if script.is_file() else Path.cwd()
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "diff", "HEAD", "--no-ext-diff", "--binary")
    if not changes:
        return commit.strip()[:12]
    return f"{commit.strip()[:12]}+{hashlib.sha256(changes.encode()).hexdigest()[:8]}"


def commit_info(commit: str, folder: Path) -> tuple[float, str] | None:
    """Return the time of a commit in seconds since 1970, and the first line of its message; None if it is unknown."""
    shown = _git(folder, "show", "--no-patch", "--format=%ct %s", _commit(commit))
    if not shown:
        return None
    time_s, _, subject = shown.strip().partition(" ")
    return float(time_s), subject


def commits_between(good: str, bad: str, folder: Path) -> tuple[tuple[str, str], ...] | None:
    """Return hash and first line of the commits after one and up to another, oldest first; None if one is unknown."""
    shown = _git(folder, "log", "--reverse", "--format=%h %s", f"{_commit(good)}..{_commit(bad)}")
    if shown is None:
        return None
    return tuple((line.partition(" ")[0], line.partition(" ")[2]) for line in shown.splitlines())


def repository(folder: Path) -> Path | None:
    """Return the root of the working tree of a folder; None outside a repository or without git."""
    root = _git(folder, "rev-parse", "--show-toplevel")
    return None if root is None else Path(root.rstrip("\n"))


def changed_files(root: Path, paths: Sequence[str]) -> list[str]:
    """Return those of some files of a working tree that differ from its last commit, or are not in it."""
    changed = _git(root, "status", "--porcelain", "--", *paths)
    return list(paths) if changed is None else [line[3:] for line in changed.splitlines()]


def _commit(revision: str) -> str:
    # A record may come from elsewhere: its revision must not become an option of git.
    commit = revision.partition("+")[0]
    return f"{commit}^{{commit}}" if commit.isalnum() else "0" * 40


def _git(folder: Path, *arguments: str) -> str | None:
    # With a name instead of a path, Python changes its warning filters while it looks for the program. It would then
    # repeat all warnings that it shows only once.
    git = shutil.which("git")
    if git is None:
        return None
    try:
        result = subprocess.run(
            [git, "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
