"""The addresses of this project: how to install it, and the pages of its documentation."""

from __future__ import annotations

REPOSITORY_URL = "https://github.com/lightning-perf/lightning_perf"

_SOURCE = f" @ git+{REPOSITORY_URL}"
"""The source for pip. Set it to an empty string once the package is on PyPI, and every hint changes with it."""


def install_command(extra: str = "") -> str:
    """Return the command that installs this package.

    Example:
        >>> print(install_command("train"))
        pip install "lightning-perf[train] @ git+https://github.com/lightning-perf/lightning_perf"
    """
    extras = f"[{extra}]" if extra else ""
    return f'pip install "lightning-perf{extras}{_SOURCE}"'


def page_url(page: str) -> str:
    """Return the address of a page of the documentation.

    Example:
        >>> page_url("docs/profiling.md")
        'https://github.com/lightning-perf/lightning_perf/blob/main/docs/profiling.md'
    """
    return f"{REPOSITORY_URL}/blob/main/{page}"
