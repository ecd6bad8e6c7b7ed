"""Logged means that are NaN or infinite although the training is sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.mistakes.place import user_place
from lightning_perf.run_files.numerics.precision import PrecisionMistake


class LoggedValues:
    """Notes where values are logged in the first batches, and checks the means at the end of each epoch.

    Args:
        module: The LightningModule. Its `log` is wrapped for the first batches.
    """

    def __init__(
        self, trainer: Trainer, module: Module, names: Mapping[int, str], report: Callable[[PrecisionMistake], None]
    ) -> None:
        self._trainer = trainer
        self._module = module
        self._names = names
        self._report = report
        self.places: dict[str, str] = {}
        """The lines that log values in the first batches, by the values' names."""
        self._wrapper: Any = None

    def start(self) -> None:
        """Start to note places."""
        if "log" in vars(self._module) or self._wrapper is not None:
            return
        log = self._module.log

        def noting(*args: Any, **kwargs: Any) -> Any:
            self._note(*args, **kwargs)
            return log(*args, **kwargs)

        self._wrapper = noting
        object.__setattr__(self._module, "log", noting)

    def _note(self, name: Any = None, *_: Any, **__: Any) -> None:
        if isinstance(name, str) and name not in self.places:
            self.places[name] = user_place(self._names)[1]

    def stop(self) -> None:
        """Give the module its own `log` back."""
        if self._wrapper is not None and vars(self._module).get("log") is self._wrapper:
            object.__delattr__(self._module, "log")
        self._wrapper = None

    def on_epoch_end(self, loss: torch.Tensor | None, step: int) -> None:
        """Training on an epoch has ended."""
        if loss is None or int(self._trainer.world_size) > 1 or not bool(torch.isfinite(loss.detach()).all()):
            return  # the training itself has failed, or a look at the metrics would be a collective call
        for name, value in self._trainer.callback_metrics.items():
            base = name.removesuffix("_epoch")
            if not isinstance(value, torch.Tensor) or base not in self.places or not value.is_floating_point():
                continue
            if bool(torch.isfinite(value).all()):
                continue
            shown = "NaN" if bool(value.isnan().any()) else "infinite"
            self._report(
                PrecisionMistake(
                    "logged-infinity",
                    "moderate",
                    f"The logged mean of {base!r} is {shown}, but the loss is finite",
                    (
                        (
                            "One batch with inf or NaN is enough to make the mean of an epoch inf or NaN. Under "
                            "16-mixed such a batch is normal: the scaler skips its step."
                        ),
                    ),
                    f"Log finite values only: if torch.isfinite(value): self.log({base!r}, value).",
                    line=self.places[base],
                    step=step,
                )
            )
