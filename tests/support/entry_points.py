"""The entry points of pyproject.toml, for processes whose environment may have an older installation."""

import os
import sys
from pathlib import Path

from tests.support.processes import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["with_entry_points"]


def with_entry_points(folder: Path) -> dict[str, str]:
    """Write the metadata of an installation to a folder.

    Returns:
        The environment of a process that finds this package and its entry points.
    """
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    info = folder / "lightning_perf-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lightning-perf\nVersion: 0.1.0\n", encoding="utf-8")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in groups[group].items()) for group in groups
    ]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(ROOT), str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}
