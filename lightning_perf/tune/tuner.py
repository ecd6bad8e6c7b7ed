"""`PerfTuner`: try levers on a training and keep those that make it faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct

from lightning_perf.callbacks.precision.tf32 import Fp32Flags
from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.result import TuneResult
from lightning_perf.tune.settings import TuneSettings


class TorchFlags(Struct, frozen=True):
    """Settings that a user's script may have made before it tunes, and that a fresh process does not know."""

    threads: int
    fp32: Fp32Flags
    cudnn_benchmark: bool
    cudnn_deterministic: bool
    default_dtype: torch.dtype

    @classmethod
    def current(cls) -> TorchFlags:
        """Read the flags of this process."""
        return cls(
            torch.get_num_threads(),
            Fp32Flags.read(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.get_default_dtype(),
        )

    def set(self) -> None:
        """Set the flags of this process."""
        torch.set_num_threads(self.threads)
        self.fp32.write()
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.set_default_dtype(self.default_dtype)


class PerfTuner:
    r"""Tries levers on your own module and data, with an interface like Lightning's ``Tuner``.

    Each trial trains a copy in a fresh process: your module, files and process stay unchanged. A lever is measured
    against the best setting so far in alternating windows, so that drift of the machine hits both. It is kept if three
    pairs of processes show a gain beyond their own differences, and the loss moves no further than other seeds move it.

    Args:
        minutes: The budget. Levers without time left are listed as not tried.
        levers: Names of levers or families; empty for all.
        rounds: Windows of each side in a trial; None for up to 12, as the budget allows.
        window_s: Seconds that a window should take; None for up to 0.75, as the budget allows.
        seed: Seeds weights, order of samples, and order of windows.

    Raises:
        TuneError: A setting is invalid.

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
        rounds: int | None = TuneSettings.rounds,
        window_s: float | None = TuneSettings.window_s,
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
            module: A LightningModule of either package; or ``package.module:name`` of a function that returns the
                training: a module, or a tuple of module, data and the Trainer's arguments.
            data: A DataLoader or LightningDataModule; None where the module has ``train_dataloader``.
            trainer: Arguments of your Trainer, e.g. ``accelerator``, ``precision``, ``accumulate_grad_batches``,
                ``gradient_clip_val`` …
            on_progress: Called with each line of progress.

        Returns:
            The outcome of each lever, and the lines to change. After Ctrl-C it holds the measurements so far, and
            ``interrupted`` is True.

        Raises:
            TuneError: The training cannot be copied to another process, or fails without any lever.
            KeyboardInterrupt: Before a lever was measured.
        """
        from lightning_perf.tune.campaign import run_campaign

        if isinstance(module, str):
            if data is not None or trainer is not None:
                raise TuneError(f"{module} gives the data and the Trainer's arguments itself: leave them out")
            return run_campaign(module, self._settings, on_progress)
        import cloudpickle

        from lightning_perf.tune.training import Training

        try:
            source = cloudpickle.dumps((TorchFlags.current(), Training(module, data, dict(trainer or {}))))
        except Exception as error:  # whatever the user's objects hold
            raise TuneError(
                f"the module or its data cannot be copied to another process ({type(error).__name__}: {error}). "
                "Give a function that makes them, as package.module:name."
            ) from error
        return run_campaign(source, self._settings, on_progress)
