"""Resumes an unfinished tuning, if it is one of the same training on the same machine."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import asdict, replace

from lightning_perf.machine.environment import version_facts
from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.messages import TrainingSource
from lightning_perf.tune.result import TuneResult
from lightning_perf.tune.settings import TuneSettings
from lightning_perf.workers.revision import git_revision
from lightning_perf.workers.script import Script

SOURCES = (".py", ".yaml", ".yml")
"""Files of a folder outside git that count as code of its training."""


def command_of(source: TrainingSource, settings: TuneSettings, devices: Sequence[int] = ()) -> str:
    """Return the command that repeats a tuning; empty for a training from Python."""
    if isinstance(source, bytes):
        return ""
    words = [f"--minutes={settings.minutes:g}"]
    words += [f"--devices={','.join(map(str, devices))}"] if devices else []
    words += [f"--levers={','.join(settings.levers)}"] if settings.levers else []
    words += [f"--rounds={settings.rounds}"] if settings.rounds is not None else []
    words += [f"--window={settings.window_s:g}"] if settings.window_s is not None else []
    training = source.arguments if isinstance(source, Script) else [source]
    return shlex.join(["lightning-perf", "tune", *words, f"--seed={settings.seed}", *training])


def code_of(source: TrainingSource) -> str:
    """Return a name of the code of a training: its revision, and a hash of the script; empty for one from Python."""
    if isinstance(source, bytes):
        return ""
    folder = Path.cwd()
    files: list[Path] = []
    if isinstance(source, Script):
        folder = source.folder
        files = [Path(source.name)] if Path(source.name).is_file() else []
    revision = git_revision(folder)
    if revision is None:
        files += sorted(path for path in folder.iterdir() if path.suffix in SOURCES)
    content = b"".join(path.read_bytes() for path in files)
    return f"{revision or 'no commit'}, {hashlib.sha256(content).hexdigest()[:8]}"


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that affect speed."""
    facts = version_facts().items()
    return {name.removeprefix("version."): str(value) for name, value in facts if value is not None}


def find_unfinished(path: Path, source: TrainingSource, settings: TuneSettings) -> TuneResult | None:
    """Return the unfinished tuning in a file; None without one.

    Raises:
        TuneError: It is one of another training, or with other options or versions.
    """
    if not path.exists():
        return None
    found = TuneResult.load(path)
    if not found.interrupted and not found.open_levers:
        return None
    then = {"command": _without_minutes(found.command), "code": found.code, **found.versions}
    command = _without_minutes(command_of(source, settings))
    now = {"command": command, "code": code_of(source), **installed_versions()}
    action = f"Give another folder, or remove {path}"
    _check(then, now, f"{path} holds an unfinished tuning of another training", action)
    return found


def check_machine(then: Machine, now: Machine) -> None:
    """Raise an error if an unfinished tuning was measured on another machine."""
    before, after = (asdict(replace(machine, fetch_cpu_share=None)) for machine in (then, now))
    _check(before, after, "the unfinished tuning was measured on another machine", "Give another folder")


def _check(then: Mapping[str, object], now: Mapping[str, object], problem: str, action: str) -> None:
    facts = {name: (then.get(name, "missing"), now.get(name, "missing")) for name in {**then, **now}}
    changed = "; ".join(f"{name}: {before}, now {after}" for name, (before, after) in facts.items() if before != after)
    if changed:
        raise TuneError(f"{problem} ({changed}). {action}.")


def _without_minutes(command: str) -> str:
    return shlex.join(word for word in shlex.split(command) if not word.startswith("--minutes="))
