"""Follows the compilations of a fit, and writes each of them to a file with its step and its module."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from lightning_perf.callbacks.compilation.torch_compiler import TorchCompiler
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.fit.compilations import COMPILATIONS, WRAPPER, Compilation, Moment

MAX_COMPILATIONS = 2000
"""Compilations that a fit writes at most. A training that compiles more often has its findings already."""


class CompileMonitor(FitObserver):
    """Writes a line for each compilation. A fit that compiles nothing has no file.

    It looks where a step starts or training pauses, and when a compilation starts. Nothing of the training runs between
    the end of a step and the start of the next. An error in here ends the monitor, and the training continues. If the
    model is not known, neither are the modules that run a compiled function.
    """

    consequence = "compilations are not followed any more"

    def __init__(self, context: FitContext, since_ns: int | None = None) -> None:
        self._state = context.state
        self._errors = errors = context.errors
        self._log = context.writer(COMPILATIONS, "compilations are no longer saved")
        self._model = context.loop.model
        self._functions: _ModuleFunctions | None = None
        self._moment: Moment = "before training"
        self._step: int | None = None
        self._recorded = False
        self._written = 0
        self._compiler: TorchCompiler | None = None
        if context.folder is not None:
            with errors.instead(self.consequence):
                self._compiler = TorchCompiler(time.time_ns() if since_ns is None else since_ns)
        self._look()

    def on_step_start(self) -> None:
        """Attribute compilations so far to the time between steps."""
        self._look()
        self._moment = "step" if self._state.whole_steps else "first step"
        self._step, self._recorded = self._state.step, self._state.recording

    def on_training_pause(self) -> None:
        """Attribute new compilations to the open step, if there is one."""
        self._look()
        self._moment = "between steps" if self._moment != "before training" else self._moment

    def on_training_resume(self) -> None:
        """Attribute compilations of the pause to the time between steps."""
        self.on_step_start()

    def close(self) -> None:
        """Write the last compilations, and take the hook out of torch."""
        self._look()
        compiler, self._compiler = self._compiler, None
        if compiler is not None:
            compiler.close()

    def _look(self) -> None:
        compiler = self._compiler
        if compiler is None or compiler.is_unused:
            return
        try:
            compiler.listen(self._look)
            for compilation in compiler.new_compilations():
                self._write(compilation)
        except Exception as error:
            self._compiler = None
            self._errors.report(self.consequence, error)
            compiler.close()

    def _write(self, compilation: Compilation) -> None:
        self._written += 1
        if self._written > MAX_COMPILATIONS:
            return
        if self._functions is None:
            self._functions = _ModuleFunctions(self._model)
        inside = self._moment in ("first step", "step")
        self._log.append(
            replace(
                compilation,
                moment=self._moment,
                step=self._step,
                recorded=inside and self._recorded,
                module=self._functions.modules_of(compilation.file, compilation.line),
            )
        )


class _ModuleFunctions:
    """The functions of a model, if it is known, and the modules that run them."""

    def __init__(self, model: Any) -> None:
        self._modules: dict[tuple[Any, type], list[str]] = {}
        """Names of the modules of a class that run some code."""
        self._wrapped: dict[type, list[str]] = {}
        """Names of compiled modules of torch's own classes: torch compiles a wrapper of its own around them."""
        named = getattr(model, "named_modules", None)
        for name, module in named() if callable(named) else ():
            for function in _python_functions(type(module), is_root=name == ""):
                self._modules.setdefault((function.__code__, type(module)), []).append(layer_name(name))
            inside = type(getattr(module, "_orig_mod", None))
            if inside.__module__.startswith("torch."):
                self._wrapped.setdefault(inside, []).append(layer_name(name))

    def modules_of(self, file: str, line: int) -> str:
        """Return the modules that run a line, e.g. ``blocks.0 and 11 more (Block)``; empty if none is known."""
        for (code, kind), names in self._modules.items():
            if code.co_filename == file and code.co_firstlineno <= line <= _last_line(code):
                return _named(kind, names)
        if Path(file).parts[-2:] == WRAPPER:
            return ", ".join(_named(kind, names) for kind, names in self._wrapped.items())
        return ""


def _named(kind: type, names: list[str]) -> str:
    first = next((name for name in names if name), "")
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{first}{more} ({kind.__name__})" if first else kind.__name__


def _last_line(code: Any) -> int:
    return max((line for *_, line in code.co_lines() if line), default=0)


def _python_functions(kind: type, *, is_root: bool) -> list[Any]:
    """Return `forward` of a class of modules. For the model itself, return all functions of its own classes."""
    if not is_root:
        forward = getattr(kind, "forward", None)
        return [forward] if inspect.isfunction(forward) else []
    own = [
        base for base in kind.__mro__ if not base.__module__.startswith(("torch.", "lightning", "pytorch_lightning"))
    ]
    return [each for base in own for each in vars(base).values() if inspect.isfunction(each)]
