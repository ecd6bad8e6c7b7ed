"""The files that the page is made of: fixed tables of addresses, so that no path in a request is ever followed."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from lightning_perf.tensorboard.responses import PAGE_POLICY
from lightning_perf.view import CONTENT_TYPES, Resource, ViewerError, find_viewer

__all__ = ["CHARTS", "Asset", "page_assets", "perfetto_assets", "plotly_file"]

CHARTS = "plotly.min.js"

FRESH_S = 3600
"""For files of other packages, which are large and change with those only."""


@dataclass(frozen=True)
class Asset:
    """A file behind an address.

    Attributes:
        resource: The file.
        policy: Its content security policy.
        fresh_s: How long a browser may use it without asking again.
    """

    resource: Resource
    policy: str = PAGE_POLICY
    fresh_s: int = 0


@cache
def page_assets() -> Mapping[str, Asset]:
    """The page's own files, by their addresses below ``static/``; the charts' library where it is installed."""
    root = Path(str(resources.files("lightning_perf.page"))) / "assets"
    assets = {
        file.relative_to(root).as_posix(): Asset(Resource(file, CONTENT_TYPES[file.suffix]))
        for file in root.rglob("*")
        if file.suffix in CONTENT_TYPES and file.is_file()
    }
    charts = plotly_file()
    if charts is not None:
        assets[CHARTS] = Asset(Resource(charts, CONTENT_TYPES[".js"]), fresh_s=FRESH_S)
    return assets


def plotly_file() -> Path | None:
    """plotly.js in the installed ``plotly`` package, found without importing it; None when there is none."""
    spec = importlib.util.find_spec("plotly")
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    files = (Path(folder) / "package_data" / CHARTS for folder in folders)
    return next((file for file in files if file.is_file()), None)


@cache
def perfetto_assets() -> Mapping[str, Asset]:
    """The files of Perfetto's UI, by their addresses below ``perfetto/``; empty where it is not installed."""
    try:
        ui = find_viewer()
    except ViewerError:
        return {}
    policy = _perfetto_policy(ui / "index.html")
    # The policy of a worker is the one that came with its script, so every file comes with it.
    return {
        file.relative_to(ui).as_posix(): Asset(
            Resource(file, CONTENT_TYPES[file.suffix]),
            policy,
            fresh_s=0 if file.parent == ui else FRESH_S,  # the others are in a folder that their version names
        )
        for file in ui.rglob("*")
        if file.suffix in CONTENT_TYPES and file.is_file()
    }


def _perfetto_policy(page: Path) -> str:
    """A policy under which Perfetto's page works: its one inline script by hash, WebAssembly, and this host alone."""
    scripts = re.findall(r"<script\b[^>]*>(.+?)</script>", page.read_text(encoding="utf-8"), re.DOTALL)
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = "".join(f" 'sha256-{digest}'" for digest in hashes)
    return PAGE_POLICY.replace("script-src 'self'", f"script-src 'self' 'unsafe-eval'{allowed}")
