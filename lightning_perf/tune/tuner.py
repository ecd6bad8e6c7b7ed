"""`PerfTuner`: tries levers on a training in bounded trials, and keeps what measures faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.result import TuneResult
from lightning_perf.tune.settings import TuneSettings

__all__ = ["PerfTuner"]


class PerfTuner:
    r"""Tries levers on your own module and data, in the manner of Lightning's ``Tuner``.

    Each trial trains in a fresh process, on a copy: your module, files and process stay as they are. A lever is
    measured against the best setting so far, window by window in turns, so that drift of the machine hits both. It is
    kept when the whole 95 % interval of the ratio lies below 1, the gain is larger than what the training differs from
    itself, and the loss moves no further than other seeds move it.

    Args:
        minutes: The budget; levers that it has no time for are listed as not tried.
        levers: Names of levers or families; all when empty.
        rounds: Windows of each side in a trial.
        window_s: Seconds that a window should take.
        seed: Seeds weights, order of samples, and order of windows.

    Raises:
        TuneError: A setting is of no use.

    Example:
        >>> tuner = PerfTuner(minutes=10, levers=["precision", "channels-last"])
        >>> result = tuner.tune(module, datamodule)  # doctest: +SKIP
        >>> print(*result.lines, sep="\n")  # doctest: +SKIP
        module = module.to(memory_format=torch.channels_last)
    """

    def __init__(
        self,
        *,
        minutes: float = TuneSettings.minutes,
        levers: Sequence[str] = (),
        rounds: int = TuneSettings.rounds,
        window_s: float = TuneSettings.window_s,
        seed: int = TuneSettings.seed,
    ) -> None:
        self._settings = TuneSettings(
            minutes=minutes, levers=tuple(levers), rounds=rounds, window_s=window_s, seed=seed
        )

    def tune(
        self,
        module: Any,
        data: Any = None,
        trainer: Mapping[str, Any] | None = None,
        *,
        on_progress: Callable[[str], None] = print,
    ) -> TuneResult:
        """Try the levers.

        Args:
            module: A LightningModule of either package; or ``package.module:name`` of a function that gives the
                training: a module, or a tuple of module, data and the Trainer's arguments.
            data: A DataLoader or LightningDataModule; None where the module has ``train_dataloader``.
            trainer: Arguments of your Trainer that matter here: ``accelerator``, ``precision``,
                ``accumulate_grad_batches``, ``gradient_clip_val`` …
            on_progress: Called with each line of progress.

        Returns:
            What was tried, and the lines to change. After Ctrl-C what was measured so far, as its ``interrupted`` says.

        Raises:
            TuneError: The training cannot be copied to another process, or fails as it is.
            KeyboardInterrupt: Before a lever was measured.
        """
        from lightning_perf.tune.campaign import run_campaign

        if isinstance(module, str):
            if data is not None or trainer is not None:
                raise TuneError(f"{module} gives the data and the Trainer's arguments itself: leave them out")
            return run_campaign(module, self._settings, on_progress)
        import cloudpickle

        from lightning_perf.tune.flags import TorchFlags
        from lightning_perf.tune.training import Training

        try:
            source = cloudpickle.dumps((TorchFlags.current(), Training(module, data, dict(trainer or {}))))
        except Exception as error:  # whatever the user's objects hold
            raise TuneError(
                f"the module or its data cannot be copied to another process ({type(error).__name__}: {error}). "
                "Give a function that makes them, as package.module:name."
            ) from error
        return run_campaign(source, self._settings, on_progress)
