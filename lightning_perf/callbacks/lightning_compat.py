"""What differs between `lightning.pytorch` and `pytorch_lightning`, and what Lightning offers no public name for.

The two packages install side by side and share no class: each Trainer accepts callbacks of its own package only, so a
callback for both inherits from both. Neither is loaded here: with both loaded, messages of one appear under the logger
of the other. Instead, the base class of a package joins as soon as the program itself has loaded it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from lightning_perf.project import install_command

__all__ = [
    "REPLICATING",
    "LightningCallback",
    "Module",
    "Trainer",
    "holds_whole_model",
    "is_lightnings_own",
    "step_number",
]

Trainer: TypeAlias = Any
"""A `Trainer` of either package; they have no common type."""

Module: TypeAlias = Any
"""A `LightningModule` of either package."""

if TYPE_CHECKING:
    from lightning.pytorch import Callback as LightningCallback
else:

    class _Plain:
        """Holds the place of a base: Python lets no class whose only base is `object` change its bases."""

    class LightningCallback(_Plain):
        """A callback of `lightning.pytorch` and of `pytorch_lightning`, whichever of them the program has loaded."""


_HOMES = ("lightning.pytorch.callbacks.callback", "pytorch_lightning.callbacks.callback")
"""The modules that define `Callback`."""


def _join(module: ModuleType | None) -> None:
    """Make the package's `Callback` a base class of ours, and so of all classes derived from it and their objects."""
    base = getattr(module, "Callback", None)
    if isinstance(base, type) and base not in LightningCallback.__bases__:
        LightningCallback.__bases__ = (*LightningCallback.__bases__[:-1], base, LightningCallback.__bases__[-1])


class _Joining:
    """The loader of a module that defines `Callback`, which joins as soon as the module has run."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:  # from here on the module is as if nobody had been there
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _join(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Watch(MetaPathFinder):
    """Notices when the program loads one of the packages; it finds no module by itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _HOMES:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Joining(spec.loader)  # type: ignore[assignment]
                return spec
        return None


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # somebody has put a module without a spec there
        return True


if not TYPE_CHECKING:
    if not any(_installed(home.split(".")[0]) for home in _HOMES):
        raise ImportError(f"PerfCallback needs Lightning. Install it with: {install_command('train')}")
    sys.meta_path.insert(0, _Watch())  # before looking, so that no package slips through between
    for _home in _HOMES:
        _join(sys.modules.get(_home))


def step_number(trainer: Trainer) -> int:
    """Return the number of the step under way, on the axis of the Trainer's own logs."""
    try:
        return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
    except AttributeError:
        return int(trainer.global_step)


REPLICATING = ("SingleDeviceStrategy", "DDPStrategy")
"""Lightning's strategies under which every process has all weights and gradients, and hands precision to its plugin."""


def is_lightnings_own(strategy: type[Any]) -> bool:
    """Whether a class of strategies stands in either of Lightning's packages."""
    return strategy.__module__.startswith(("lightning.pytorch.strategies.", "pytorch_lightning.strategies."))


def holds_whole_model(trainer: Trainer) -> bool:
    """Whether each process of a Trainer holds the whole model, so that it can compute with it by itself.

    DeepSpeed's strategy is derived from DDP's, and XLA's from the single device's: the first of Lightning's own classes
    decides.

    Args:
        trainer: The Trainer.
    """
    own = next((base for base in type(trainer.strategy).__mro__ if is_lightnings_own(base)), None)
    return own is not None and own.__name__ in REPLICATING
