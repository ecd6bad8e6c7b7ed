"""Virtual environments for packages that do not fit together, on top of the environment of this process."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "anomalib": ("anomalib==2.7.0",),
    "bolts": ("lightning-bolts==0.5.0",),
    "forecasting": ("neuralforecast==3.3.0", "u8darts==0.41.0", "pytorch-forecasting==1.8.0", "gluonts[torch]==0.17.0"),
    "graphs": ("torch-geometric==2.8.1",),
    "hydra": ("hydra-core==1.3.8", "hydra-colorlog==1.2.0", "rootutils==1.0.7"),
    "litgpt": ("litgpt==0.5.13",),
    "science": ("scvi-tools==1.4.2", "chemprop==2.3.1"),
    "tabular": ("pytorch-tabular==1.2.0",),
    "transformers": ("transformers==5.23.0", "accelerate==1.15.0"),
    "vision": ("torchgeo==0.8.1", "lightly==1.6.0", "segmentation-models-pytorch==0.6.0", "kornia==0.9.0"),
}
"""Requirements by environment. The environment ``""`` is that of this process, with torch, Lightning and timm."""

SHARED = ("torch", "torchvision", "lightning", "pytorch-lightning")
"""Packages that stay those of this process in every environment."""

INSTALL_LIMIT_S = 900


class InstallError(RuntimeError):
    """An environment could not be made. The message is the last line of pip's error."""


def python_of(name: str, folder: Path) -> Path:
    """Return the Python of an environment, and install the environment if its requirements changed.

    Args:
        name: One of `ENVIRONMENTS`, or "" for the environment of this process.
        folder: Where the environments are.

    Raises:
        InstallError: pip failed.
    """
    if not name:
        return Path(sys.executable)
    home, wanted = folder / name, "\n".join(ENVIRONMENTS[name])
    python, done = home / "bin" / "python", home / "requirements.txt"
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return python
    _call([sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)])
    own = subprocess.run([str(python), "-c", _SITE], capture_output=True, text=True, check=True).stdout.strip()
    # Torch and Lightning take gigabytes. A path file lends them to every environment.
    (Path(own) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        pins = Path(scratch) / "constraints.txt"
        pins.write_text("".join(f"{one}=={importlib.metadata.version(one)}\n" for one in SHARED), encoding="utf-8")
        _call([str(python), "-m", "pip", "install", "--quiet", "--constraint", str(pins), *ENVIRONMENTS[name]])
    done.write_text(wanted, encoding="utf-8")
    return python


_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def installed_packages(name: str, folder: Path) -> tuple[str, ...]:
    """Return the packages that an environment adds, with versions."""
    if not name:
        return ()
    own = next((folder / name / "lib").glob("python*/site-packages"))
    found = importlib.metadata.distributions(path=[str(own)])
    return tuple(sorted({f"{one.metadata['Name']}=={one.version}" for one in found}, key=str.lower))


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"took more than {INSTALL_LIMIT_S} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise InstallError(lines[-1].removeprefix("ERROR: ") if lines else f"exit code {done.returncode}")
