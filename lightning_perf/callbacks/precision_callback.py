"""`PrecisionCallback`: switches a Trainer to mixed precision and monitors its numerics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import LightningCallback, Module, Trainer, may_wait_for_device
from lightning_perf.callbacks.mistakes.loop_checks import loaded_without_scaler
from lightning_perf.callbacks.numerics.bad_run import Diagnose
from lightning_perf.callbacks.numerics.monitors import MonitorOptions, add_monitors
from lightning_perf.callbacks.precision.fp32_layers import Fp32Layers, LayerPattern
from lightning_perf.callbacks.precision.switch import (
    PRECISIONS,
    PrecisionError,
    PrecisionSwitch,
    ScalerSettings,
    check_fit,
    plugin_module,
    precision_of,
)
from lightning_perf.callbacks.precision.tf32 import Fp32Flags, read_fp32_arithmetic, set_tf32
from lightning_perf.callbacks.run_record.run_folder import claim_run_folder
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import Observers
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.callbacks.training_loop import TrainerLoop
from lightning_perf.run_files.numerics.precision import (
    BadRun,
    LossScaleHistory,
    NumericsDrift,
    PrecisionMistake,
    PrecisionSetting,
    RunPrecision,
    UnderflowTable,
    write_precision,
)

Precision = Literal["16-mixed", "bf16-mixed", "32-true"]

_OWN_MODULES = ("lightning_perf.", "lightning.pytorch.callbacks.callback", "pytorch_lightning.callbacks.callback")

_HOOKS = {
    "on_train_epoch_start": "on_epoch_start",
    "on_train_batch_start": "on_batch_start",
    "on_before_zero_grad": None,
    "on_before_backward": "on_before_backward",
    "on_after_backward": "on_after_backward",
    "on_before_optimizer_step": "on_before_optimizer_step",
    "on_train_batch_end": "on_batch_end",
    "on_train_epoch_end": "on_epoch_end",
    "on_validation_batch_start": None,
    "on_validation_batch_end": None,
}
"""The hooks that a Trainer calls for each batch and epoch, and those of the observers, or None."""


class ObservedCallback(LightningCallback):
    """A callback that passes the hooks of the training loop to the observers of the fit.

    A Trainer calls a hook if it is callable. During a fit, the callback sets the hooks to None that no observer needs.
    """

    _OF_A_FIT: ClassVar[tuple[str, ...]] = ()
    """Attributes that a copy does not get. `_reset` sets them."""

    _observers: Observers

    def _reset(self) -> None:
        """Take part in no fit."""

    def __getstate__(self) -> dict[str, Any]:
        """Copy the settings only: a copy takes no part in a running fit."""
        # Lightning adds the methods `log` and `log_dict` of the module, and a copy of them would hold it.
        left_out = ("log", "log_dict", "_observers", *_HOOKS, *self._OF_A_FIT)
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copy the settings only."""
        self.__dict__.update(state)
        self._reset()

    def _observe(self, observers: Observers) -> None:
        """Call these observers, until `_stop_observing`."""
        self._observers = observers
        observers.on_change.append(self._leave_out_idle_hooks)
        self._leave_out_idle_hooks()

    def _stop_observing(self) -> None:
        """Have all hooks again."""
        self._observers.on_change.clear()
        for name in _HOOKS:
            vars(self).pop(name, None)

    def _leave_out_idle_hooks(self) -> None:
        for name, hook in _HOOKS.items():
            # A derived class may have a hook of its own, which does more.
            ours = getattr(getattr(type(self), name), "__module__", "").startswith(_OWN_MODULES)
            if ours and (hook is None or not getattr(self._observers, hook).calls):
                vars(self)[name] = None
            elif vars(self).get(name, self) is None:
                del vars(self)[name]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._observers.on_epoch_start()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        self._observers.on_batch_start(batch, batch_idx)

    def on_before_backward(self, trainer: Trainer, pl_module: Module, loss: Any) -> None:
        self._observers.on_before_backward(loss)

    def on_after_backward(self, trainer: Trainer, pl_module: Module) -> None:
        self._observers.on_after_backward()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Module, optimizer: Any) -> None:
        self._observers.on_before_optimizer_step(optimizer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._observers.on_batch_end(outputs)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._observers.on_epoch_end()


class PrecisionCallback(ObservedCallback):
    """Switches a Trainer to mixed precision, and monitors the loss scale and gradient underflow.

    ``Trainer(callbacks=[PrecisionCallback("16-mixed")])`` trains like ``Trainer(precision="16-mixed")`` for fit,
    validate, test and predict. Checkpoints hold the scaler's state under Lightning's own name. Results are the same bit
    for bit, with one exception: in automatic optimization autocast's weight cache is on, as in plain torch. A weight
    that is used n times in a forward pass is then cast once, and its n gradients are added up in half precision.
    Without `precision` the callback adopts the Trainer's precision and monitors it. If the Trainer was built with
    ``16-mixed``, settings of the scaler change its scaler until the end of the run. They override those of a
    checkpoint, except the scale itself.

    Under ``16-mixed`` it follows the loss scale and skipped steps on the host, and checks gradients for underflow on
    sampled steps. Neither makes the host wait for the device. Events are saved as ``loss_scale.rank0.jsonl`` and
    ``underflow.rank0.jsonl``, the summary as ``precision.json``.

    Args:
        precision: ``16-mixed``, ``bf16-mixed``, ``32-true``, or None to keep the Trainer's. On a CPU, ``16-mixed``
            becomes ``bf16-mixed`` with a warning.
        keep_fp32: Layers that compute in FP32: names as in ``named_modules()``, with ``*`` (dots too), ``?`` and
            ``[…]``, or classes of layers.
        tf32: ``on`` or ``off`` sets TF32 for FP32 products and convolutions during the run; None leaves it alone.
        init_scale: First loss scale of ``16-mixed``; None for torch's default, 65536.
        growth_factor: Factor by which the loss scale grows; None for torch's default, 2.
        backoff_factor: Factor by which the loss scale shrinks after an overflow; None for torch's default, 0.5.
        growth_interval: Steps without overflow after which the loss scale grows; None for torch's default, 2000.
        scaler_enabled: False to train in ``16-mixed`` without a loss scale; None for torch's default, True.
        underflow_every_n_steps: Check gradients for underflow every so many steps under ``16-mixed``; 0 for never.
        locate_overflows: Number of overflows to find the origin of, by running their batch again; 0 for none.
        guard_steps: Number of first steps to replay in FP32. This tells whether mixed precision changes the run more
            than another seed would. 0 for none, otherwise 2 or more.
        diagnose: Whether to check each step for NaN and infinities: ``loss`` without waiting for a GPU, ``gradients``
            also before the optimizer steps, which waits for the GPU, or ``off``. The first bad batch is run again, to
            find the origin and the layers to keep in FP32.
        log_metrics: Log the loss scale to the Trainer's loggers, as ``perf/…``.
        dirpath: Folder for the files; with the suffix ``_1``, ``_2``, … where it is not empty. Default: ``perf`` in
            the Trainer's log directory.

    Raises:
        TypeError: `keep_fp32` is a single string instead of a sequence.
        ValueError: An argument has an invalid value.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[PrecisionCallback("bf16-mixed", keep_fp32=["*.head"])], logger=False)
    """

    def __init__(
        self,
        precision: Precision | None = None,
        *,
        keep_fp32: Sequence[LayerPattern] = (),
        tf32: Literal["on", "off"] | None = None,
        init_scale: float | None = None,
        growth_factor: float | None = None,
        backoff_factor: float | None = None,
        growth_interval: int | None = None,
        scaler_enabled: bool | None = None,
        underflow_every_n_steps: int = 100,
        locate_overflows: int = 0,
        guard_steps: int = 0,
        diagnose: Diagnose = "loss",
        log_metrics: bool = True,
        dirpath: str | os.PathLike[str] | None = None,
    ) -> None:
        if precision is not None and precision not in PRECISIONS:
            near = next((f"Did you mean {name!r}? " for name in PRECISIONS if name.startswith(f"{precision}-")), "")
            raise ValueError(
                f"precision={precision!r} is unknown. {near}Give one of {', '.join(map(repr, PRECISIONS))}"
            )
        if tf32 not in ("on", "off", None):
            raise ValueError(f"tf32={tf32!r} is unknown: give 'on', 'off' or None")
        if isinstance(keep_fp32, str):
            raise TypeError(f"keep_fp32={keep_fp32!r} is one name: give a sequence, keep_fp32=[{keep_fp32!r}]")
        if keep_fp32 and precision == "32-true":
            raise ValueError("keep_fp32 was given with precision='32-true', where all layers are in FP32: leave it out")
        scaler = ScalerSettings(
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=scaler_enabled,
        )
        if scaler.given and precision not in ("16-mixed", None):
            raise ValueError(
                f"{scaler} was given with precision={precision!r}, which scales no loss: give precision='16-mixed', or "
                "leave the scaler's settings out"
            )
        self._keep_fp32 = tuple(keep_fp32)
        self._tf32 = tf32
        self._options = MonitorOptions(
            underflow_every_n_steps=underflow_every_n_steps,
            locate_overflows=locate_overflows,
            guard_steps=guard_steps,
            diagnose=diagnose,
        )
        self._dirpath = os.fspath(dirpath) if dirpath is not None else None
        self._switch = PrecisionSwitch(precision, scaler=scaler)
        self._log_metrics = log_metrics
        self._must_work = True
        self._reset()
        self.setting: PrecisionSetting | None = None
        """The precision of the last run, and which FP32 it was; None before one has begun."""
        self.loss_scale: LossScaleHistory | None = None
        """The loss scale's history in the last fit; None without a loss scale."""
        self.underflow: UnderflowTable | None = None
        """Gradient underflow in the last fit; None where no step was sampled."""
        self.numerics: NumericsDrift | None = None
        """The comparison with FP32 replays in the last fit; None where none was asked for, or the fit was too short."""
        self.mistakes: tuple[PrecisionMistake, ...] = ()
        """Mistakes in the use of 16-bit precision that the last fit showed."""
        self.bad_run: BadRun | None = None
        """The diagnosis of the last fit, if its loss turned NaN or infinite; None if it did not."""

    _OF_A_FIT = ("_own_log", "_place", "_flags", "_layers", "_loaded", "_watches", "_failed")

    def _reset(self) -> None:
        errors = ErrorReporter()
        self._observers = Observers(errors)
        self._own_log = TrainerLog(None, errors)
        self._place: tuple[Path | None, ErrorReporter] | None = None
        self._flags: Fp32Flags | None = None
        self._layers: Fp32Layers | None = None
        self._loaded: PrecisionMistake | None = None
        self._watches = True
        self._failed = False

    @property
    def result(self) -> RunPrecision | None:
        """All of the last run's results together; None before one has begun."""
        if self.setting is None:
            return None
        return RunPrecision(self.setting, self.loss_scale, self.underflow, self.numerics, self.mistakes, self.bad_run)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Switch the precision before anything depends on it."""
        with self._isolated():
            self._switch.install(trainer)
            if self._tf32 is not None and self._flags is None:
                self._flags = set_tf32(self._tf32)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Check the precision before the first step, and keep layers in FP32."""
        self._begin(trainer, pl_module)
        with self._isolated():
            check_fit(trainer, pl_module, precision_of(trainer), requested=self._switch.requested is not None)

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Keep layers in FP32."""
        self._begin(trainer, pl_module)

    on_test_start = on_predict_start = on_validation_start

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start to monitor the numbers, unless another callback does it."""
        errors = ErrorReporter()
        self._observe(Observers(errors))
        if self._watches:
            folder = claim_run_folder(trainer, self._dirpath, errors) if not trainer.fast_dev_run else None
            self._own_log = TrainerLog(trainer if self._log_metrics else None, errors)
            self._place = (folder if trainer.is_global_zero else None, errors)
            context = FitContext(TrainerLoop(trainer), folder, errors)
            self.add_monitors(self._observers, trainer, pl_module, context, self._own_log)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """End the monitoring and save its results."""
        self._finish()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Save the scaler's state also in a checkpoint made after the fit."""
        with self._isolated():
            self._switch.add_state(checkpoint)
        self._observers.on_save_checkpoint(checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint to resume from has the scaler's state."""
        with self._isolated():
            self._loaded = loaded_without_scaler(trainer, checkpoint)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """Restore the Trainer's own precision: Lightning does not call `teardown` after an error."""
        self._finish(may_wait=may_wait_for_device(trainer))
        self._undo()

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Restore the Trainer's own precision."""
        self._finish()
        self._undo()

    # For a `PerfCallback`: either it has a callback of this class inside, or the Trainer has one beside it.

    def embed(self, *, must_work: bool) -> None:
        """Let another callback call the hooks. Unless it `must_work`, an error costs the report only."""
        self._must_work = must_work

    def hand_over(self) -> None:
        """Let another callback call `add_monitors` with its own folder once training starts."""
        self._watches = False

    def add_monitors(
        self, observers: Observers, trainer: Trainer, pl_module: Module, context: FitContext, trainer_log: TrainerLog
    ) -> None:
        """Add the monitors of the numbers of a fit to its observers. `keep_results` takes their results."""
        self.loss_scale = self.underflow = self.numerics = self.bad_run = None
        self.mistakes = () if self._loaded is None else (self._loaded,)
        with self._isolated():
            self._switch.apply_scaler_factors()
            log = trainer_log if self._log_metrics else TrainerLog(None, context.errors)
            add_monitors(observers, trainer, pl_module, self._options, context, log, self.mistakes)

    def keep_results(self, results: Mapping[str, Any], folder: Path | None, errors: ErrorReporter) -> None:
        """Keep the results of the monitors, by the names of `RunPrecision`, and write them to ``precision.json``."""
        self.loss_scale, self.underflow = results.get("loss_scale"), results.get("underflow")
        self.numerics, self.bad_run = results.get("numerics"), results.get("bad_run")
        self.mistakes = results.get("mistakes", self.mistakes)
        result = self.result
        if result is not None and folder is not None:
            with errors.instead("the summary of the run's precision is not saved"):
                write_precision(folder, result)

    @contextmanager
    def _isolated(self) -> Iterator[None]:
        """Let an error cost the report only, unless the training cannot run as the user asked for."""
        try:
            yield
        except Exception as error:
            if self._must_work or isinstance(error, PrecisionError):
                raise
            if not self._failed:
                ErrorReporter().report("the precision is not reported", error)
            self._failed = True

    def _begin(self, trainer: Trainer, module: Module) -> None:
        """Keep layers in FP32 once all of them exist, and note the setting."""
        with self._isolated():
            precision = precision_of(trainer)
            plugin = trainer.precision_plugin
            mixed = isinstance(plugin, plugin_module(trainer).MixedPrecision)
            if self._keep_fp32 and not mixed:
                raise PrecisionError(
                    f"keep_fp32 was given, but the Trainer is in '{precision}' by {type(plugin).__name__}",
                    "Give the callback precision='16-mixed' or 'bf16-mixed' as well, or leave out keep_fp32",
                )
            if self._layers is None and self._keep_fp32:
                self._layers = Fp32Layers(module, self._keep_fp32, plugin.device)
            self.setting = PrecisionSetting(
                precision=precision,
                requested=self._switch.requested,
                switched=self._switch.switched,
                weight_cache=getattr(plugin.autocast_context_manager(), "_cache_enabled", None) if mixed else None,
                keep_fp32=self._layers.names if self._layers is not None else (),
                fp32=read_fp32_arithmetic(trainer.strategy.root_device),
                note=self._switch.note,
            )

    def _finish(self, *, may_wait: bool = True) -> None:
        self._own_log.close()
        results = self._observers.finish(may_wait=may_wait)
        self._stop_observing()
        place, self._place = self._place, None
        if place is not None:
            self.keep_results(results, *place)

    def _undo(self) -> None:
        if self._layers is not None:
            self._layers.undo()
            self._layers = None
        if self._flags is not None:
            self._flags.write()
            self._flags = None
        self._switch.undo()
        self._loaded = None
        self._watches = True
        self._failed = False
