"""A training script as people name it after a command: ``train.py --lr 0.1``, or ``-m package.train --lr 0.1``."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from lightning_perf.errors import LocatedError
from lightning_perf.workers.revision import repository


class ScriptError(LocatedError):
    """A script cannot be started."""


class Script(Struct, frozen=True):
    """A script and its arguments.

    Attributes:
        words: Its path, or the name of a module, then its arguments.
        is_module: Whether it is a module, as after ``python -m``.
    """

    words: tuple[str, ...]
    is_module: bool = False

    @property
    def name(self) -> str:
        """Its path or the name of the module."""
        return self.words[0]

    @property
    def folder(self) -> Path:
        """The folder where it searches modules first."""
        path = Path.cwd() if self.is_module else Path(self.name).absolute()
        return path if path.is_dir() else path.parent

    @property
    def root(self) -> Path:
        """The folder of its project: that of its git repository, or else the current folder or its own."""
        here = Path.cwd()
        found = repository(self.folder) or (here if self.folder.is_relative_to(here) else self.folder)
        return found.resolve()

    @property
    def arguments(self) -> list[str]:
        """The words that start it, after ``python``."""
        return ["-m", *self.words] if self.is_module else list(self.words)

    @property
    def command(self) -> list[str]:
        """The command that runs it with the Python and the flags of this process."""
        # A private function, which multiprocessing also uses to start processes with the same flags.
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return [sys.executable, *flags, *self.arguments]


def find_script(words: Sequence[str], *, is_module: bool, command: str) -> Script:
    """Return a script, or raise an error if it does not exist.

    Args:
        command: Name of the command that runs it, for the advice in errors.
    """
    if not words:
        raise ScriptError(command, "no script is given", f"Give one, e.g. lightning-perf {command} train.py")
    name = words[0]
    if is_module:
        if not _has_module(name):
            advice = "Check its name, and run the command in its parent folder"
            raise ScriptError(name, "there is no such module", advice)
    elif name.startswith("-"):
        raise ScriptError(name, "unknown option", "Give the options of the script after its name")
    elif not Path(name).exists():
        raise ScriptError(name, "there is no such script", _advice(name, command))
    return Script(tuple(words), is_module)


def _has_module(name: str) -> bool:
    path, sys.path[0:0] = list(sys.path), [str(Path.cwd())]  # where ``python -m`` looks first
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path[:] = path


def _advice(name: str, command: str) -> str:
    if Path(name).name.startswith("python"):
        return f"Leave out the interpreter, e.g. lightning-perf {command} train.py"
    if command == "run" and name in ("torchrun", "accelerate", "srun"):
        return f"Give the launcher first, e.g. {name} -m lightning_perf run train.py"
    if importlib.util.find_spec(name) is not None if name.isidentifier() else False:
        return f"Run the package as a module: lightning-perf {command} -m {name}"
    return "Check the path, or give a module with -m"
