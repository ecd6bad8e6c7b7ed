"""The mistakes found in one fit with their places in the user's program, and the warning for the first of each kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import nn

from lightning_perf.callbacks.error_reporter import show_warning
from lightning_perf.callbacks.lightning_compat import Module, Trainer, step_number
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.run_files.numerics.precision import PrecisionMistake

_TRAINER = ("trainer/call.py", "trainer\\call.py")
"""Ends of the path of Lightning's module that calls all hooks."""

_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "lightning_perf", "torchmetrics")
_FOLDERS = (
    *(f"{Path(torch.__file__).parents[1].as_posix()}/{library}/" for library in _LIBRARIES),
    f"{Path(__file__).parents[2].as_posix()}/",
)
"""Folders of libraries. The first frame outside of them is the user's."""


_MODERATE = {"checkpoint-without-scaler", "half-accumulation", "logged-infinity", "scheduler-on-skips"}
"""Kinds that cost accuracy or steps. The others make the training wrong, unless a check knows better."""


class FoundMistakes:
    """Collects the mistakes of a fit, each kind once per place, and warns about the first one of a kind.

    Only rank 0 warns. Checks pass their own errors to `failed`.

    Attributes:
        layers: Names of the module's layers by their ``id``.
        parameters: Names of its parameters by their ``id``.
    """

    MOST_PER_KIND = 5
    """Places to report for a mistake. One that a model repeats in 48 layers has the same fix in all of them."""

    def __init__(self, trainer: Trainer, module: Module, failed: Callable[[Exception], None]) -> None:
        self.layers = layer_names(module)
        self.parameters = {id(parameter): layer_name(name) for name, parameter in module.named_parameters()}
        self.failed = failed
        self._trainer = trainer
        self._mistakes: list[PrecisionMistake] = []
        self._places: set[tuple[str, str, str]] = set()
        self._silent = not trainer.is_global_zero
        self._warned: set[str] = set()

    @property
    def mistakes(self) -> tuple[PrecisionMistake, ...]:
        """The mistakes, those that ruin a training first."""
        return tuple(sorted(self._mistakes, key=lambda mistake: (mistake.severity != "high", mistake.step)))

    def report(
        self,
        kind: str,
        title: str,
        action: str,
        *evidence: str,
        moderate: bool = False,
        layer: str = "",
        line: str = "",
        step: int | None = None,
    ) -> None:
        """Add a mistake of the current step, unless another one is given."""
        step = step_number(self._trainer) if step is None else step
        severity: Literal["high", "moderate"] = "moderate" if moderate or kind in _MODERATE else "high"
        self.add(PrecisionMistake(kind, severity, title, evidence, action, layer, line, step))

    def layer_of(self, parameter: Any) -> str:
        """Return the layer of a parameter; empty if the module has no such parameter."""
        return self.parameters.get(id(parameter), "").rpartition(".")[0]

    def add(self, mistake: PrecisionMistake) -> None:
        """Add a mistake, unless it is known for this place."""
        place = (mistake.kind, mistake.layer, mistake.line)
        known = sum(one.kind == mistake.kind for one in self._mistakes)
        if place in self._places or known >= self.MOST_PER_KIND:
            return
        self._places.add(place)
        self._mistakes.append(mistake)
        if self._silent or mistake.kind in self._warned:
            return
        self._warned.add(mistake.kind)
        message = (
            f"Mixed precision: {mistake.title}{mistake.where}. Fix: {mistake.action} "
            f"(lightning-perf explain {mistake.kind})"
        )
        show_warning(message, UserWarning)


def layer_names(module: Module) -> dict[int, str]:
    """Return the names of a module's layers by their ``id``; the module's own name is empty."""
    return {id(layer): layer_name(name) for name, layer in module.named_modules()}


def user_place(names: Mapping[int, str]) -> tuple[str, str]:
    """Return the layer and the line of the innermost call that is under way.

    Returns:
        The layer's name, empty if no layer's method is under way, and ``file:line`` of the user's code, empty if the
        call does not come from there.
    """
    layer: str | None = None
    line = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_TRAINER):
            break  # the frames above only called trainer.fit
        if layer is None and code.co_varnames[:1] == ("self",):
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                layer = names.get(id(owner))
        if not line and _is_users(code.co_filename):
            line = f"{_short(code.co_filename)}:{frame.f_lineno}"
        if layer is not None and line:
            break
        frame = frame.f_back
    return layer or "", line


@cache
def _is_users(filename: str) -> bool:
    path = Path(filename).as_posix()
    return not path.startswith((*_FOLDERS, "<")) and not path.endswith(("/contextlib.py", "/functools.py"))


def _short(filename: str) -> str:
    path = Path(filename)
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return "/".join(path.parts[-2:])
