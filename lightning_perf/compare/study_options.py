"""The engine and the rules of a study, kept in its folder, so that you can resume it without options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from lightning_perf.compare.study.definition import read_file
from lightning_perf.compare.study.run import Engine
from lightning_perf.compare.verdicts.gates import Settings
from lightning_perf.errors import CompareError
from lightning_perf.run_files.atomic import write_document
from lightning_perf.run_files.journal import has_begun

OPTIONS_NAME = "options.json"
"""The options of a study, in its folder."""


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """An engine and its options. Each engine ignores the options of the others.

    Attributes:
        devices: For ``local``, as `parse_devices` reads them.
        address: Address of the Ray cluster; None for ``RAY_ADDRESS``, else Ray starts on this machine.
        slurm: Options of the SLURM job without their dashes, e.g. ``{"partition": "gpu", "time": 60}``.
    """

    engine: Literal["local", "ray", "slurm"] = "local"
    devices: str | None = None
    gpus: int = 1
    cpus: int = 1
    address: str | None = None
    slurm: Mapping[str, str | int] = field(default_factory=dict)

    def build(self) -> Engine:
        """Make the engine.

        Raises:
            CompareError: This machine does not have the devices.
        """
        if self.engine == "ray":
            from lightning_perf.compare.engines.ray import RayEngine

            return RayEngine(gpus=self.gpus, cpus=self.cpus, address=self.address)
        if self.engine == "slurm":
            from lightning_perf.compare.engines.local import SlurmEngine

            options = {f"slurm_{name}": value for name, value in self.slurm.items()}
            return SlurmEngine({"gpus_per_node": self.gpus, "cpus_per_task": self.cpus, **options})
        from lightning_perf.compare.engines.local import LocalEngine, parse_devices

        return LocalEngine(parse_devices(self.devices))


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options of a study."""

    engine: EngineChoice
    settings: Settings


def read_options(folder: Path) -> StudyOptions | None:
    """Return the options that a study was started with; None for one that was started from Python."""
    path = folder / OPTIONS_NAME
    return read_file(path, StudyOptions, "does not hold the options of a study") if path.exists() else None


def settle_options(folder: Path, engine: EngineChoice | None, settings: Settings) -> StudyOptions:
    """Save the options of a new study, or return those of the study that was started in this folder.

    The engine may change each time. The rules stay as they were declared.

    Args:
        folder: The study's folder.
        engine: The chosen engine; None for the saved one, else the default.
        settings: The declared rules; the defaults stand for the saved ones.

    Returns:
        The options that apply.

    Raises:
        CompareError: The study was started with other rules, or the file cannot be read or written.
    """
    there = read_options(folder) if has_begun(folder) else None
    if there is not None:
        changed = _differences(there.settings, settings) if settings != Settings() else ""
        if changed:
            raise CompareError(
                f"{folder}: this study was started with other rules ({changed}) and keeps them. To judge its runs by "
                f"others, run: lightning-perf compare {folder} …"
            )
        settings = there.settings
    default = there.engine if there is not None else EngineChoice()
    options = StudyOptions(engine=engine if engine is not None else default, settings=settings)
    if options != there:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_document(folder / OPTIONS_NAME, options)
        except OSError as error:
            raise CompareError(
                f"{folder / OPTIONS_NAME}: cannot be written ({error.strerror}). Choose another folder."
            ) from error
    return options


def _differences(there: Settings, given: Settings) -> str:
    names = (f.name for f in fields(Settings) if getattr(there, f.name) != getattr(given, f.name))
    return ", ".join(f"{name}: {_text(getattr(there, name))}, not {_text(getattr(given, name))}" for name in names)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(str(getattr(item, "text", item)) for item in value) or "none"
    return "none" if value is None else str(value)
