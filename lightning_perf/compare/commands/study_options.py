"""How a study is run and judged, kept beside its definition, so that going on with it needs no options."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from lightning_perf.compare.engines.choice import EngineChoice
from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.settings import Settings
from lightning_perf.compare.study.run import has_begun

__all__ = ["StudyOptions", "settle_options"]

FILE = "options.json"


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What the command line was told.

    Attributes:
        engine: What runs the blocks.
        settings: What was declared before looking at the runs.
    """

    engine: EngineChoice
    settings: Settings


def settle_options(folder: Path, engine: EngineChoice | None, settings: Settings) -> StudyOptions:
    """Keep the options of a new study, or take those of the one that has begun there.

    The engine may be another one each time. What was declared before looking stays as it was declared.

    Args:
        folder: The study's folder.
        engine: What was chosen; None for what was chosen before, or the default.
        settings: What was declared; the default for what was declared before.

    Returns:
        The options in force.

    Raises:
        CompareError: The study was declared with other settings, or the file cannot be read or written.
    """
    path = folder / FILE
    there = _read(path) if has_begun(folder) and path.exists() else None
    if there is not None:
        changed = _differences(there.settings, settings) if settings != Settings() else ""
        if changed:
            raise CompareError(
                f"{folder}: was declared with other settings ({changed}), and these stay. To look at its runs in "
                f"another way: lightning-perf compare {folder} …"
            )
        settings = there.settings
    default = there.engine if there is not None else EngineChoice()
    options = StudyOptions(engine=engine if engine is not None else default, settings=settings)
    if options != there:
        _write(path, options)
    return options


def _differences(there: Settings, given: Settings) -> str:
    names = (f.name for f in fields(Settings) if getattr(there, f.name) != getattr(given, f.name))
    return ", ".join(f"{name}: {_text(getattr(there, name))}, not {_text(getattr(given, name))}" for name in names)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(str(getattr(item, "text", item)) for item in value) or "none"
    return "none" if value is None else str(value)


def _read(path: Path) -> StudyOptions:
    try:
        return msgspec.json.decode(path.read_bytes(), type=StudyOptions)
    except (OSError, msgspec.DecodeError) as error:
        raise CompareError(f"{path}: cannot be read as the options of a study ({error}).") from error


def _write(path: Path, options: StudyOptions) -> None:
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(options), indent=2) + b"\n")
        partial.replace(path)
    except OSError as error:
        raise CompareError(f"{path}: cannot be written ({error.strerror}). Choose another folder.") from error
