"""The `PerfCallback` that ``lightning-perf run`` adds to the Trainers of a script."""

from __future__ import annotations

from typing import Any

from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.perf import PerfCallback
from lightning_perf.run_files.launch import MeasurementStarted, NothingMeasured, OwnMeasurement, leave_note


class InjectedCallback(PerfCallback):
    """A `PerfCallback` that gives way to another one, and leaves notes for ``lightning-perf run``.

    It prints no report: the command prints it when the script has ended.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{**arguments, "report": "none"})

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Switch the precision, or leave the Trainer if it has another `PerfCallback`.

        The Trainer adds callbacks of entry points to the list that the script gave it. If two Trainers get the same
        list, the second one has two of these callbacks.
        """
        first = next(
            (c for c in trainer.callbacks if isinstance(c, PerfCallback) and not isinstance(c, InjectedCallback)), None
        )
        if first is not None:
            leave_note(OwnMeasurement("PerfCallback"))
        else:
            first = next((c for c in trainer.callbacks if isinstance(c, InjectedCallback)), self)
        if first is not self:
            # A new list: the Trainer goes through the old one just now.
            trainer.callbacks = [callback for callback in trainer.callbacks if callback is not self]
            return
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start to observe the fit, and name its folder to the command."""
        super().on_train_start(trainer, pl_module)
        if not trainer.is_global_zero:
            return
        if self._session is None or not self._session.measured:
            leave_note(NothingMeasured("the Trainer has fast_dev_run"))
        elif self._session.fit is not None:
            folder = self._session.folder
            leave_note(MeasurementStarted(str(folder) if folder is not None else None))
