"""The Trainer of Hugging Face's transformers in a trial: its levers are `TrainingArguments`."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn, TypeAlias

import torch

from lightning_perf.callbacks.steps.batch_parts import batch_samples
from lightning_perf.errors import TraceError
from lightning_perf.tune.errors import NotApplicableError, TrialError
from lightning_perf.tune.levers.lever import Change, Lever, Machine, Setting
from lightning_perf.tune.levers.loader import BatchSize, FewerMicroBatches, PinnedMemory, Workers
from lightning_perf.tune.levers.model import TF32, ChannelsLast, Compiled, CudnnBenchmark, MixedPrecision
from lightning_perf.tune.levers.optimizer import FusedOptimizer
from lightning_perf.tune.levers.registry import LEVERS
from lightning_perf.tune.messages import Arguments, Site
from lightning_perf.tune.trainers.fit import MAX_STEPS
from lightning_perf.tune.training import Training

_Values: TypeAlias = dict[str, Any]


def _workers(change: Workers, now: Any) -> _Values:
    values: _Values = {"dataloader_num_workers": change.count, "dataloader_persistent_workers": True}
    if {change.prefetch, now.dataloader_prefetch_factor or 2} != {2}:
        values["dataloader_prefetch_factor"] = change.prefetch
    return values


_VALUES: dict[type, Callable[[Any, Any], _Values]] = {
    MixedPrecision: lambda change, _: {"fp16" if change.precision == "16-mixed" else "bf16": True},
    TF32: lambda *_: {"tf32": True},
    FusedOptimizer: lambda *_: {"optim": "adamw_torch_fused"},
    Workers: _workers,
    PinnedMemory: lambda *_: {"dataloader_pin_memory": True},
    FewerMicroBatches: lambda _, now: {
        "per_device_train_batch_size": 2 * now.per_device_train_batch_size,
        "gradient_accumulation_steps": now.gradient_accumulation_steps // 2,
    },
    BatchSize: lambda change, now: {"per_device_train_batch_size": change.factor * now.per_device_train_batch_size},
    Compiled: lambda change, _: (
        {"torch_compile": True} | ({} if change.mode == "default" else {"torch_compile_mode": change.mode})
    ),
}
"""The arguments for a change of Lightning's Trainer, given those so far. Other changes are of the model or torch."""

_OF_LOADER = {
    "dataloader_num_workers": "num_workers",
    "dataloader_persistent_workers": "persistent_workers",
    "dataloader_prefetch_factor": "prefetch_factor",
    "dataloader_pin_memory": "pin_memory",
    "per_device_train_batch_size": "batch_size",
}
"""Arguments that a loader follows, unless the script makes it itself."""

_AS_MADE, _PARSED = "_lightning_perf_as_made", "_lightning_perf_parsed"
_UNSTEADY = {"output_dir", "logging_dir", "run_name", "torch_compile_backend"}
"""Arguments that may differ from run to run, or that follow from others."""

_FOR_TRIALS = {"eval_on_start": False, "load_best_model_at_end": False, "push_to_hub": False}
_ITS_OWN_KEPT = {"DefaultFlowCallback", "TrainerCallback", "ExportableState"}
"""Of transformers' own callbacks, the others would end a trial early, write files, or print."""


def watch_arguments(module: ModuleType, calls: Any) -> None:
    """Note the calls that make `TrainingArguments`, the values that they give, and the classes of their parser."""
    kind: Any = module.TrainingArguments
    complete = kind.__post_init__

    def noted(self: Any) -> None:
        caller: Any = sys._getframe(1)
        while caller.f_code.co_name == "__post_init__":  # of a subclass, which may be the user's
            caller = caller.f_back
        calls.note(self, caller)
        complete(self)
        vars(self)[_AS_MADE] = dict(vars(self))
        # The caller is the ``__init__`` of the data class. A parser calls it in a method of its own.
        vars(self)[_PARSED] = getattr(caller.f_back.f_locals.get("self"), "dataclass_types", ())

    kind.__post_init__ = noted


def watch_trainer(module: ModuleType, begin: Callable[[HuggingFaceTrainer], NoReturn], calls: Any) -> None:
    """Call a function instead of the Trainer's ``train``."""
    kind: Any = module.Trainer
    train = kind.train

    @functools.wraps(train)
    def trains(self: Any, *args: Any, **options: Any) -> None:  # noqa: ARG001
        calls.note_fit(self, sys._getframe(1))
        begin(HuggingFaceTrainer(self, functools.partial(train, self)))

    kind.__init__, kind.train = calls.noting(kind.__init__), trains


class HuggingFaceTrainer:
    """A ``transformers.Trainer`` in a trial: a `TrialTrainer`."""

    def __init__(self, trainer: Any, train: Callable[[], Any]) -> None:
        self._trainer, self._run, self._made = trainer, train, trainer.args
        self._given = {field.name: getattr(trainer.args, field.name) for field in dataclasses.fields(trainer.args)}
        self._batches = 0
        given = SimpleNamespace(**self._given)
        # In Lightning's words, in which levers ask whether they apply.
        in_words = {
            "precision": "16-mixed" if given.fp16 else "bf16-mixed" if given.bf16 else None,
            "accumulate_grad_batches": given.gradient_accumulation_steps,
            "deterministic": given.full_determinism,
        }
        self.training = Training(trainer.model, trainer=in_words)
        self._has_optimizer = trainer.optimizer is not None

    def fit(self, callback: Any, folder: str, max_steps: int = MAX_STEPS) -> None:
        self._train([], callback, folder, max_steps)

    def record(self, folder: str, *, skip_first: int, warmup: int, active: int, probe_s: float) -> None:
        from lightning_perf.loop.transformers_callback import PerfTrainerCallback
        from lightning_perf.probe.run import probe_path
        from lightning_perf.run_files.probe import write_probe

        recorder = PerfTrainerCallback(
            skip_first=skip_first, warmup=warmup, active=active, repeat=1, dirpath=folder, report="none"
        )
        self._train([recorder], None, folder, skip_first + warmup + active + 1)
        with suppress(TraceError):  # without it, the findings predict alone
            write_probe(Path(folder), probe_path(Path(folder), probe_s))

    def _train(self, callbacks: list[Any], callback: Any, folder: str, max_steps: int) -> None:
        trainer, args = self._trainer, self._trainer.args
        if (devices := args.n_gpu * args.world_size) > 1:
            raise TrialError(
                f"trials run on one device, and this Trainer has {devices}: hide the others, e.g. with "
                "CUDA_VISIBLE_DEVICES=0"
            )
        if args is not self._made:
            trainer.create_accelerator_and_postprocess()
            trainer._train_batch_size = args.train_batch_size
        torch.backends.cudnn.benchmark |= bool(self.training.trainer.get("benchmark"))
        vars(args).update(_FOR_TRIALS, output_dir=folder, max_steps=max_steps)
        trainer.get_train_dataloader = functools.partial(self._loader, trainer.get_train_dataloader)
        trainer.create_scheduler = functools.partial(self._scheduler, trainer.create_scheduler)
        handler = trainer.callback_handler
        handler.callbacks = [*filter(_is_kept, handler.callbacks), *callbacks, _Events(trainer, callback)]
        self._run()

    def _loader(self, original: Callable[[], Any]) -> Any:
        """Make the loader, and note it as it was before accelerate wraps it."""
        accelerator, training = self._trainer.accelerator, self.training
        prepare = accelerator.prepare
        training.loader = f"{type(self._trainer).__name__} makes the DataLoader itself"

        def noted(*made: Any, **options: Any) -> Any:
            if isinstance(made[0], torch.utils.data.DataLoader):
                training.loader = made[0]
            return prepare(*made, **options)

        accelerator.prepare = noted
        try:
            loader = original()
        finally:
            del accelerator.prepare
        with suppress(TypeError):  # the data have no length
            self._batches = len(loader)
        for name, follows in _OF_LOADER.items():
            value = getattr(self._trainer.args, name)
            if value != self._given[name] and value != getattr(training.loader, follows, None):
                raise NotApplicableError(f"the loader does not follow {name}")
        return loader

    def _scheduler(self, original: Callable[..., Any], num_training_steps: int, **options: Any) -> Any:
        """Make the schedule over the steps of the training, not over those of a trial."""
        steps = self._given["max_steps"]
        if steps <= 0 and self._batches:
            per_epoch = math.ceil(self._batches / self._trainer.args.gradient_accumulation_steps)
            steps = math.ceil(self._given["num_train_epochs"] * per_epoch)
        return original(num_training_steps=steps if steps > 0 else num_training_steps, **options)

    def change(self, lever: Lever) -> Change:
        return _Change(lever.change, self)

    def values(self, change: Change) -> _Values:
        """Return the arguments that a lever sets; none if it changes the model or torch instead."""
        of_kind = _VALUES.get(type(change))
        return {} if of_kind is None else of_kind(change, self._trainer.args)

    def set(self, values: _Values) -> None:
        """Set arguments, with all checks of transformers."""
        self._trainer.args = dataclasses.replace(self._trainer.args, **values)

    def why_not(self, change: Change, machine: Machine) -> str | None:
        """Return why these arguments do not apply or change nothing, or None."""
        values, given = self.values(change), self._given
        if values and all(given[name] == value for name, value in values.items()):
            return "it is already set"
        if "optim" in values and (self._has_optimizer or given["optim"] != "adamw_torch"):
            name = "an optimizer of the script" if self._has_optimizer else f'optim="{given["optim"].value}"'
            return f"{name} has no fused form among the TrainingArguments"
        if "bf16" in values and machine.device == "cpu" and not given["use_cpu"]:
            return "on a CPU, transformers takes bf16 only with use_cpu=True: set it, and tune again"
        if isinstance(change, ChannelsLast) and self._trainer.model_init is not None:
            return "model_init makes the model"
        return None

    def device(self) -> torch.device:
        device: torch.device = self._trainer.args.device
        return device

    def arguments(self) -> Arguments:
        simple = (bool, int, float, str, type(None))
        values = {name: value for name, value in self._given.items() if isinstance(value, simple)}
        return Arguments({"TrainingArguments": {name: values[name] for name in values.keys() - _UNSTEADY}})

    def parameters(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        # A parser may read several data classes of the script from one file.
        fields = (field.name for kind in vars(self._made).get(_PARSED, ()) for field in dataclasses.fields(kind))
        return {"TrainingArguments": ((*self._given, *fields),)}

    def sites(self, calls: Any) -> dict[str, tuple[Site | str, ...]]:
        found: dict[str, tuple[Site | str, ...]] = calls.sites(None, ())
        # The call of the Trainer takes the model, as Lightning's ``fit`` does.
        found |= {"module": found.pop("Trainer", ()), "TrainingArguments": calls.of(self._made)}
        values = [name for lever in LEVERS for name in self.values(lever.change)]
        as_made = vars(self._made).get(_AS_MADE, self._given)
        if any(as_made[name] != self._given[name] for name in values):
            found["TrainingArguments"] = ("a later assignment",)
        return {place: sites for place, sites in found.items() if sites}

    def refused(self) -> str:
        return ""


@dataclasses.dataclass(frozen=True)
class _Change:
    """The change of a lever, in terms of `TrainingArguments`."""

    change: Change
    trainer: HuggingFaceTrainer

    def missing(self, training: Training, machine: Machine) -> str | None:
        return self.change.missing(training, machine) or self.trainer.why_not(self.change, machine)

    def settings(self, training: Training) -> tuple[Setting, ...]:
        if isinstance(self.change, CudnnBenchmark):
            line = "torch.backends.cudnn.benchmark = True"
            return (Setting("statement", line=line, code=line),)
        settings, values = self.change.settings(training), self.trainer.values(self.change)
        if not values:
            return settings
        texts = {name: f'"{value}"' if isinstance(value, str) else repr(value) for name, value in values.items()}
        return (Setting("TrainingArguments", texts), *(setting for setting in settings if not setting.place))

    def apply(self, training: Training) -> None:
        values = self.trainer.values(self.change)
        if values:
            self.trainer.set(values)
        else:
            self.change.apply(training)


def _is_kept(callback: Any) -> bool:
    """Return whether a callback is part of the training itself."""
    homes = ("transformers.", "lightning_perf.")
    return {base.__name__ for base in type(callback).__mro__ if base.__module__.startswith(homes)} <= _ITS_OWN_KEPT


class _Events:
    """Passes a Trainer's events on to a callback of Lightning, for which it has the attributes of a Trainer."""

    accumulate_grad_batches = 1  # of the batches of a step, only the sum of their losses is passed on

    def __init__(self, trainer: Any, callback: Any) -> None:
        self.global_step, self.should_stop = 0, False
        self.strategy = SimpleNamespace(root_device=trainer.args.device)
        self._callback = callback
        self._loss: Any = 0.0
        self._samples: int | None = 0
        self._step, self._fetch = trainer.training_step, trainer.get_batch_samples
        self._trainer = trainer
        trainer.training_step, trainer.get_batch_samples = self._training_step, self._get_batch_samples

    def _training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        count = batch_samples(inputs)
        self._samples = None if self._samples is None or count is None else self._samples + count
        loss = self._step(model, inputs, *args, **options)
        self._loss = loss + self._loss
        return loss

    def _get_batch_samples(self, *args: Any, **options: Any) -> Any:
        batches, *rest = self._fetch(*args, **options)
        if not batches:  # data without a length are over, which the Trainer does not check
            self._trainer.control.should_epoch_stop = True
        return (batches, *rest)

    def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
        """Start."""
        if self._callback is not None:
            self._callback.on_train_start(self, model)

    def on_step_end(self, _: Any, state: Any, control: Any, *, model: Any, **__: Any) -> None:
        """Pass on the end of a step, and leave out all that the Trainer would do between steps."""
        self.global_step = state.global_step
        samples = None if self._samples is None else torch.empty(self._samples, 0)
        if self._callback is not None:
            self._callback.on_train_batch_end(self, model, self._loss, samples, 0)
        self._loss, self._samples = 0.0, 0
        control.should_training_stop |= self.should_stop
        control.should_log = control.should_evaluate = control.should_save = False

    def on_epoch_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
        """Leave out all that the Trainer would do between epochs."""
        control.should_log = control.should_evaluate = control.should_save = False

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_, **__: None
