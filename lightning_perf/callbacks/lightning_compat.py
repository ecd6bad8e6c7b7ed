"""Differences between `lightning.pytorch` and `pytorch_lightning`, and access to parts that have no public name.

The two packages can be installed side by side and share no class. Each Trainer accepts callbacks of its own package
only, so a callback for both inherits from both. This module loads neither: with both loaded, messages of one package
appear under the logger of the other. Instead, it adds a package's base class once the program has loaded the package.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from lightning_perf.lazy_imports import install_command

Trainer: TypeAlias = Any
"""A `Trainer` of either package; they have no common type."""

Module: TypeAlias = Any
"""A `LightningModule` of either package."""

if TYPE_CHECKING:
    import lightning.pytorch

    LightningCallback = lightning.pytorch.Callback
else:

    class _Plain:
        """A placeholder: Python does not let a class change its bases if its only base is `object`."""

    class LightningCallback(_Plain):
        """A callback of `lightning.pytorch` and of `pytorch_lightning`, whichever of them the program has loaded.

        Raises:
            ImportError: A class is derived from it, and neither package is installed.
        """

        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__(**options)
            if not any(_installed(home.split(".")[0]) for home in _HOMES):
                raise ImportError(f"{cls.__name__} needs Lightning. Install it with: {install_command('train')}")


_HOMES = ("lightning.pytorch.callbacks.callback", "pytorch_lightning.callbacks.callback")
"""The modules that define `Callback`."""


def _join(module: ModuleType) -> None:
    """Make the package's `Callback` a base class of `LightningCallback`, also for subclasses and objects that exist."""
    base = getattr(module, "Callback", None)
    if isinstance(base, type) and base not in LightningCallback.__bases__:
        LightningCallback.__bases__ = (*LightningCallback.__bases__[:-1], base, LightningCallback.__bases__[-1])


class _Watch(MetaPathFinder):
    """Adds a call to the loading of some modules. The other finders find and load them."""

    def __init__(self, names: Sequence[str], done: Callable[[ModuleType], None]) -> None:
        self._names, self._done = names, done

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            if module.__name__ == fullname:  # a loader of an archive has other modules to load as well
                loader.exec_module = execute
            execute(module)
            if module.__name__ == fullname:
                self._done(module)

        loader.exec_module = execute_and_call
        return spec


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module without a spec is loaded under this name
        return True


def when_loaded(names: Sequence[str], done: Callable[[ModuleType], None]) -> None:
    """Call a function with each of these modules, now or once the program loads it. No other call may name it."""
    sys.meta_path.insert(0, _Watch(names, done))  # before the loop, so that no import by another thread is missed
    for name in names:
        if name in sys.modules:
            done(sys.modules[name])


if not TYPE_CHECKING:
    when_loaded(_HOMES, _join)


def step_number(trainer: Trainer) -> int:
    """Return the number of the current step, on the axis of the Trainer's own logs."""
    try:
        return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
    except AttributeError:
        return int(trainer.global_step)


def optimizer_progress(trainer: Trainer) -> Any:
    """Return the Trainer's own count of optimizer steps, in automatic optimization; None if it cannot be found.

    ``trainer.global_step`` returns its ``total.completed``, through seven properties.
    """
    try:
        if not trainer.lightning_module.automatic_optimization:
            return None
        progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
        return progress if progress.total.completed == trainer.global_step else None
    except AttributeError:
        return None


REPLICATING = ("SingleDeviceStrategy", "DDPStrategy")
"""Lightning's strategies that keep all weights and gradients in every process and leave precision to the plugin."""


def is_lightnings_own(strategy: type[Any]) -> bool:
    """Return whether a strategy class is defined in one of Lightning's packages."""
    return strategy.__module__.startswith(("lightning.pytorch.strategies.", "pytorch_lightning.strategies."))


def holds_whole_model(trainer: Trainer) -> bool:
    """Return whether each process of a Trainer holds the whole model, so that it can compute with it alone.

    DeepSpeed's strategy is derived from DDP's, and XLA's from the single device's, so the first of Lightning's own
    classes decides.
    """
    own = next((base for base in type(trainer.strategy).__mro__ if is_lightnings_own(base)), None)
    return own is not None and own.__name__ in REPLICATING


def clips_as_lightning_does(module: Module) -> bool:
    """Return whether a module leaves the clipping of gradients to Lightning."""
    hook = getattr(type(module), "configure_gradient_clipping", None)
    own = getattr(hook, "__module__", "").startswith(("lightning.pytorch.", "pytorch_lightning."))
    return own and "configure_gradient_clipping" not in vars(module)


def is_compiled(module: Module) -> bool:
    """Return whether a module or a part of it is compiled, so that a wrapper of ours could get into the graph."""
    if getattr(module, "_compiler_ctx", None) is not None:  # set by Lightning on a module that is compiled as a whole
        return True
    if any(_is_compiled_function(value) for base in type(module).__mro__ for value in vars(base).values()):
        return True
    return any(
        hasattr(layer, "_orig_mod")
        or getattr(layer, "_compiled_call_impl", None) is not None
        or any(_is_compiled_function(value) for value in vars(layer).values())
        for layer in module.modules()
    )


def _is_compiled_function(value: object) -> bool:
    return callable(value) and "_torchdynamo_orig_callable" in getattr(value, "__dict__", ())


def may_wait_for_device(trainer: Trainer) -> bool:
    """Return whether to wait for the device after an error: it may itself wait for a rank that is gone."""
    return int(trainer.world_size) == 1 or trainer.strategy.root_device.type == "cpu"
