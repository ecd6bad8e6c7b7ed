"""The revision of the running code: the commit, and later changes. Unlike `environment` it does not need torch."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

__all__ = ["git_revision"]

GIT_TIMEOUT_S = 10


def git_revision(folder: Path | None = None) -> str | None:
    """Return the commit of the running code, with a hash of uncommitted changes.

    Args:
        folder: A folder of the repository; that of the running script by default.

    Returns:
        ``<commit>`` or ``<commit>+<hash of the changes to tracked files>``; None outside a repository or without git.
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


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
