"""What `PerfCallback` has to do with precision: a `PrecisionCallback` inside, or the one that the Trainer has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_perf.analysis.run_precision import RunPrecision
from lightning_perf.callbacks.error_reporter import Faults
from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.precision.precision_error import PrecisionError
from lightning_perf.callbacks.precision_callback import PrecisionCallback

__all__ = ["OwnPrecision"]


class OwnPrecision:
    """A `PrecisionCallback` that is told of the Trainer's hooks, and steps back for one that hears them itself.

    Where a precision was asked for its errors are errors; where it only watches they are faults like any other, and it
    is told of nothing more.

    Args:
        callback: The callback.
        asked: Whether it was asked to change anything.
    """

    def __init__(self, callback: PrecisionCallback, *, asked: bool) -> None:
        self.callback = callback
        self.asked = asked
        self._in_force = callback
        self._failed = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy is of the settings: it takes no part in a run that is under way."""
        return {**self.__dict__, "_in_force": self.callback, "_failed": False}

    @property
    def result(self) -> RunPrecision | None:
        """The precision of the last run and what it did to the numbers; None before one has begun."""
        return self._in_force.result

    @property
    def fp32_layers(self) -> tuple[str, ...]:
        """Names of the layers kept in FP32."""
        setting = self._in_force.setting
        return setting.keep_fp32 if setting is not None else ()

    def setup(self, trainer: Trainer, module: Module, stage: str) -> None:
        """Switch the precision, or leave that to the `PrecisionCallback` that the Trainer has.

        Raises:
            PrecisionError: Both were asked to, or the precision cannot be had.
        """
        others = [callback for callback in trainer.callbacks if isinstance(callback, PrecisionCallback)]
        if others and self.asked:
            raise PrecisionError(
                "PerfCallback was given a precision, keep_fp32 or tf32, and there is a PrecisionCallback as well",
                "Give all of it to the PrecisionCallback",
            )
        if others:
            self._in_force = others[0]
            self._in_force.hand_over()
        else:
            self._in_force, self._failed = self.callback, False
            self.tell("setup", trainer, module, stage)

    def watch(self, trainer: Trainer, module: Module, folder: Path | None, faults: Faults) -> None:
        """Begin to monitor the numbers of a fit, as `PrecisionCallback.watch` does."""
        if self._in_force is self.callback:
            self.tell("watch", trainer, module, folder, faults)
        else:
            self._in_force.watch(trainer, module, folder, faults)

    def tell(self, hook: str, *arguments: Any) -> None:
        """Pass a hook on, unless another callback is in force, whose hooks the Trainer calls.

        Args:
            hook: The hook's name.
            arguments: Its arguments.
        """
        if self._in_force is not self.callback or self._failed:
            return
        try:
            getattr(self.callback, hook)(*arguments)
        except Exception as error:
            if self.asked:
                raise
            self._failed = True
            Faults().report("the precision is not reported", error)
