"""Runs a script in a worker process until its training begins, and notes which calls made its objects."""

from __future__ import annotations

import functools
import inspect
import os
import random
import runpy
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from traceback import walk_stack
from types import FrameType, ModuleType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from msgspec.structs import replace
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from lightning_perf.callbacks.lightning_compat import when_loaded
from lightning_perf.tune.errors import NoFitError, describe_error
from lightning_perf.tune.messages import Site
from lightning_perf.tune.trainers.fit import LightningTrainer
from lightning_perf.tune.trainers.huggingface import watch_arguments, watch_trainer
from lightning_perf.tune.training import Training, TrialTrainer
from lightning_perf.workers.channel import Channel, Failure, StopRequestedError
from lightning_perf.workers.script import Script

_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
_TUNERS = ("lightning.pytorch.tuner.tuning", "pytorch_lightning.tuner.tuning")
"""Modules that fit in order to find a learning rate or a batch size, before the fit itself."""
_HAVE_TRAINERS = ("lightning.pytorch.", "pytorch_lightning.", "transformers.")
LOOP_STEPS = 100
"""Steps of optimizers outside of any Trainer that show a loop of the script."""


def run_script(
    script: Script, seed: int, on_fit: Callable[[TrialTrainer], None], channel: Channel, calls: Calls
) -> None:
    """Run a script as ``python`` would. Its first fit calls `on_fit` and then ends this process.

    So the context managers around the fit are open, and nothing after the fit runs.

    Args:
        seed: Added to every seed that the script sets. 0 leaves the script's own.
        calls: Notes the calls that make the objects of the training.

    Raises:
        NoFitError: The script ended before its training began.
    """

    def begin(trainer: TrialTrainer) -> NoReturn:
        steps.remove()
        code = _guarded(lambda: on_fit(trainer), channel)
        sys.stdout.flush()
        os._exit(code)

    def refuse() -> NoReturn:
        raise NoFitError(
            f"{script.name} trains in a loop of its own. Only a Trainer of Lightning or Hugging Face can be tuned"
        )

    steps = _watch_steps(lambda: os._exit(_guarded(refuse, channel)))

    os.environ["WANDB_MODE"] = "disabled"  # a tuning has many processes, and none of them is an experiment
    _seed(seed)
    when_loaded(_TRAINERS, lambda module: _watch_trainers(module, begin, calls))
    when_loaded(("transformers.training_args",), lambda module: watch_arguments(module, calls))
    when_loaded(("transformers.trainer",), lambda module: watch_trainer(module, begin, calls))
    sys.path[0] = str(script.folder)
    sys.argv = list(script.words)
    try:
        with calls.of_loaders_and_optimizers():
            if script.is_module:
                runpy.run_module(script.name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(Path(script.name).absolute()), run_name="__main__")
    except NoFitError:
        raise
    except SystemExit as error:
        raise NoFitError(f"{script.name} exited with {error.code or 0} before its training began") from error
    except Exception as error:
        raise NoFitError(f"{script.name} failed before its training began ({describe_error(error)})") from error
    raise NoFitError(f"{script.name} ended, and no Trainer of Lightning or Hugging Face trained")


def _watch_steps(in_loop: Callable[[], None]) -> RemovableHandle:
    """Call a function once optimizers have made many steps without a Trainer: a loop of the script may take hours."""
    count = 0

    def note(*_: Any) -> None:
        nonlocal count
        count += 1
        if count % LOOP_STEPS == 0:
            names = (frame.f_globals.get("__name__", "") for frame, _ in walk_stack(sys._getframe()))
            if not any(name.startswith(_HAVE_TRAINERS) for name in names):
                in_loop()

    return register_optimizer_step_post_hook(note)


def _seed(seed: int) -> None:
    """Seed as ``seed_everything(workers=True)`` would, then let all seeds of the script differ by this one."""
    os.environ |= {"PL_GLOBAL_SEED": str(seed), "PL_SEED_WORKERS": "1"}
    for home, name in ((random, "seed"), (np.random, "seed"), (torch, "manual_seed")):
        original = getattr(home, name)
        original(seed)
        if seed:
            setattr(home, name, _shifted(original, seed))


def _shifted(original: Callable[..., Any], by: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def shifted(seed: Any = None, *args: Any, **options: Any) -> Any:
        return original((seed + by) % 2**32 if isinstance(seed, int) else seed, *args, **options)

    return shifted


def _watch_trainers(module: ModuleType, begin: Callable[[TrialTrainer], NoReturn], calls: Calls) -> None:
    trainer_class: Any = module.Trainer
    create, fit_ = trainer_class.__init__, trainer_class.fit
    given: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
    running = False

    @functools.wraps(create)
    def noted(self: Any, *args: Any, **arguments: Any) -> None:
        given[self] = arguments
        calls.note(self, sys._getframe(1))
        create(self, *args, **arguments)

    @functools.wraps(fit_)
    def fit(self: Any, *args: Any, **arguments: Any) -> Any:
        nonlocal running
        caller = sys._getframe(1)
        if running or caller.f_globals.get("__name__") in _TUNERS:
            return fit_(self, *args, **arguments)
        running = True
        calls.note_fit(self, caller)
        bound = inspect.signature(fit_).bind(self, *args, **arguments).arguments
        data = bound.get("datamodule")
        data = bound.get("train_dataloaders") if data is None else data
        return begin(LightningTrainer(Training(bound["model"], data, dict(given[self]))))

    trainer_class.__init__, trainer_class.fit = noted, fit


def _guarded(work: Callable[[], None], channel: Channel) -> int:
    """Do the work of this process and return its exit code. No error reaches the script, which might catch it."""
    try:
        work()
    except StopRequestedError:
        pass
    except BaseException as error:
        channel.send(Failure(type(error).__name__, describe_error(error)))
        return 1
    return 0


class Calls:
    """Notes which calls in the files of a project made the Trainer, the loader and the optimizers of a training.

    Args:
        root: Folder of the project; None to note nothing.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._here, self._root = Path.cwd(), root
        self._made: dict[int, tuple[ref[Any], Site | str, str]] = {}
        self._fit: Site | str = ""
        self._trainer: Any = None
        self._counts: Counter[Site | str] = Counter()
        self._read: set[Path] = set()

    @contextmanager
    def of_loaders_and_optimizers(self) -> Iterator[None]:
        """Note the calls that make data loaders and optimizers, until the script ends."""
        originals = {kind: kind.__init__ for kind in (DataLoader, Optimizer)} if self._root is not None else {}
        if self._root is not None:
            sys.addaudithook(self._note_open)
        for kind, original in originals.items():
            kind.__init__ = self.noting(original)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for kind, original in originals.items():
                kind.__init__ = original  # type: ignore[method-assign]

    def _note_open(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | Path) or arguments[1] not in (None, "r", "rb"):
            return
        path = self._here.joinpath(arguments[0]).resolve()
        # Libraries read many JSON files, so one counts only if it is an argument of the script.
        if path.suffix in (".yaml", ".yml") or (
            path.suffix == ".json" and path in (self._here.joinpath(word).resolve() for word in sys.argv[1:])
        ):
            self._read.add(path)

    def files(self) -> tuple[str, ...]:
        """Return the project's Python files that are loaded, and its configuration files that were read."""
        loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        paths = {self._here.joinpath(path).resolve() for path in loaded if path and path.endswith(".py")} | self._read
        return tuple(sorted(str(path) for path in paths if self._root is not None and self._is_users(path)))

    def noting(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return a constructor that notes the call before it makes the object."""

        @functools.wraps(original)
        def create(made: Any, *args: Any, **arguments: Any) -> None:
            self.note(made, sys._getframe(1))
            original(made, *args, **arguments)

        return create

    def note(self, made: Any, caller: FrameType | None) -> None:
        """Note the call that makes an object: the nearest one that its class did not make itself."""
        while self._root is not None and caller is not None:
            if self._is_users(self._path(caller)) or not _is_within(caller, made):
                site = self._site(caller, type(made))
                self._counts[site] += self._fit == ""
                with suppress(TypeError):  # not all objects can be referred to
                    self._made[id(made)] = ref(made), site, caller.f_code.co_name
                return
            caller = caller.f_back

    def note_fit(self, trainer: Any, caller: FrameType) -> None:
        """Note the call of ``fit``."""
        if self._root is not None:
            self._trainer, self._fit = trainer, self._site(caller, None)

    def sites(self, loader: Any, optimizers: Sequence[Optimizer]) -> dict[str, tuple[Site | str, ...]]:
        """Return the calls by the place of a `Setting`."""
        found = {
            "Trainer": self.of(self._trainer),
            "DataLoader": self.of(loader),
            "optimizer": tuple(dict.fromkeys(site for each in optimizers for site in self.of(each))),
            "module": (self._fit,),
            "statement": (self._fit,),
        }
        return {place: sites for place, sites in found.items() if sites}

    def of(self, made: Any) -> tuple[Site | str, ...]:
        """Return the call that made an object, if it was noted."""
        noted, site, function = self._made.get(id(made), (None, "", ""))
        if noted is None or noted() is not made:
            return ()
        if isinstance(site, Site) and site.name == "DataLoader":
            count = self._counts[site]
            shared = count > 1 or (not count and function != "train_dataloader")
            site = replace(site, makes_others=shared)
        return (site,)

    def _path(self, frame: FrameType) -> Path:
        return self._here.joinpath(frame.f_code.co_filename).resolve()

    def _is_users(self, path: Path) -> bool:
        return (
            self._root in path.parents
            and not {"site-packages", "dist-packages"} & set(path.parts)
            and not path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())
            and not path.is_relative_to(Path(__file__).resolve().parents[1])
            and path.is_file()
        )

    def _site(self, frame: FrameType, kind: type | None) -> Site | str:
        code = frame.f_code
        if not self._is_users(self._path(frame)):
            return f"{frame.f_globals.get('__name__', '?')}.{getattr(code, 'co_qualname', code.co_name)}"
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = () if kind is None else inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
        end_line = column = end_column = None
        if hasattr(code, "co_positions"):  # from Python 3.11 on
            _, end_line, column, end_column = next(islice(code.co_positions(), frame.f_lasti // 2, None))
        return Site(
            str(self._path(frame)),
            frame.f_lineno,
            "fit" if kind is None else kind.__name__,
            tuple(each.name for each in parameters if each.kind is positional)[1:],
            end_line=end_line,
            column=column,
            end_column=end_column,
        )


def _is_within(frame: FrameType, made: Any) -> bool:
    """Return whether a function works on an object that is being made, such as its class's ``__init__``."""
    names = frame.f_code.co_varnames
    return bool(names) and frame.f_locals.get(names[0]) is made
