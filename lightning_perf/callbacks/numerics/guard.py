"""`guard_steps`: a mixed run's first steps in FP32, to tell whether mixed precision leads it elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lightning_perf.analysis.precision.scales import OTHER_SEEDS, judge_drift
from lightning_perf.callbacks.numerics.replay import KeptBatch, Replay, copied_tensors, loss_of, write_back
from lightning_perf.callbacks.peak_memory import restart_peak
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.precision import NumericsDrift

_Settings = list[dict[str, Any]]


class NumericsGuard(FitObserver):
    """Keeps a run's first batches and where it started from, and replays them in FP32 once it has made its steps.

    The replays go through `training_step`, gradient clipping and the optimizer with the learning rates that the run
    had, but not through an `optimizer_step` of the user's. Weights and optimizer are put back afterwards.
    """

    consequence = "the run is not compared with FP32"

    def __init__(self, replay: Replay, steps: int, on_drift: Callable[[KeptBatch], None]) -> None:
        if not replay.possible:
            raise PrecisionError(
                "the first steps can be replayed in FP32 in automatic optimization and on one device only",
                "Leave out guard_steps, or run those steps with Trainer(devices=1)",
            )
        self._replay = replay
        self._trainer, self._module = replay.trainer, replay.module
        self._optimizer = self._trainer.optimizers[0]
        self._left = steps
        self._on_drift = on_drift
        self._steps: list[tuple[list[KeptBatch], _Settings]] = []
        self._batches: list[KeptBatch] = []
        self._losses: list[torch.Tensor] = []
        self._start = copied_tensors((*self._module.parameters(), *self._module.buffers()))
        self._optimizer_state = _cloned_state(self._optimizer.state)
        self._result: NumericsDrift | None = None

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """A training batch starts: keep it."""
        if not self._left:
            return
        self._batches.append(self._replay.keep(batch, batch_idx).copied())

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """The optimizer is about to step: note the learning rate and whatever else schedulers set."""
        if self._left:
            self._steps.append((self._batches, copy.deepcopy(_settings(optimizer))))
            self._batches = []

    def on_batch_end(self, outputs: Any) -> None:
        """A training batch has ended: keep its loss, and replay once all steps are made."""
        if not self._left:
            return
        loss = loss_of(outputs)
        if loss is not None:
            self._losses.append(loss.detach() * self._trainer.accumulate_grad_batches)
        if not self._batches:
            self._left -= 1
            if not self._left:
                self._result = self._compare()
                last = self._steps[-1][0][-1]
                self.close()
                restart_peak(self._trainer.strategy.root_device)  # these steps had copies of batches and weights
                if self._result.beyond_seed_noise:
                    self._on_drift(last)

    def results(self) -> dict[str, Any]:
        return {"numerics": self._result}

    def close(self) -> None:
        self._left = 0
        self._steps, self._batches, self._losses, self._start, self._optimizer_state = [], [], [], [], {}

    def _compare(self) -> NumericsDrift:
        precision = str(self._trainer.precision_plugin.precision)
        with self._training_put_back(), self._replay.isolated(fp32=True):
            mixed_end = self._mean_loss()
            fp32_losses = self._train(seed=0)
            fp32_end = self._mean_loss()
            seed_ends = []
            for seed in range(1, OTHER_SEEDS + 1):
                self._train(seed=seed)
                seed_ends.append(self._mean_loss())
        return judge_drift(
            precision=precision,
            mixed_losses=[float(loss) for loss in self._losses],
            fp32_losses=fp32_losses,
            mixed_end=mixed_end,
            fp32_end=fp32_end,
            seed_ends=seed_ends,
        )

    @contextmanager
    def _training_put_back(self) -> Iterator[None]:
        """Restore weights and optimizer at the end."""
        weights, state = copied_tensors(self._module.parameters()), self._optimizer.state
        settings = _settings(self._optimizer)
        try:
            yield
        finally:
            write_back(weights)
            self._optimizer.state = state
            self._set(settings)

    def _set(self, settings: _Settings) -> None:
        for group, setting in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(setting)

    @torch.enable_grad()
    def _train(self, *, seed: int) -> list[float]:
        """Train the steps from the start; with another seed than 0 in another order, with other random numbers."""
        write_back(self._start)
        self._optimizer.state = _cloned_state(self._optimizer_state)
        batches = list(self._all_batches())
        if seed:
            order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed)).tolist()
            batches = [batches[position] for position in order]
        ordered = iter(batches)
        losses = []
        for kept, settings in self._steps:
            self._optimizer.zero_grad(set_to_none=True)
            for _ in kept:
                loss = self._replay.step(next(ordered), seed=seed)
                if loss is not None:
                    (loss / self._trainer.accumulate_grad_batches).backward()
                    losses.append(loss.detach())
            self._set(settings)
            self._module.configure_gradient_clipping(
                self._optimizer,
                gradient_clip_val=self._trainer.gradient_clip_val,
                gradient_clip_algorithm=self._trainer.gradient_clip_algorithm,
            )
            self._optimizer.step()
        return [float(loss) for loss in losses]

    def _all_batches(self) -> Iterable[KeptBatch]:
        return (kept for batches, _ in self._steps for kept in batches)

    @torch.no_grad()
    def _mean_loss(self) -> float:
        """Return the mean loss over all batches, with the current weights and the run's random numbers."""
        losses = [loss.float() for kept in self._all_batches() if (loss := self._replay.step(kept)) is not None]
        return float(torch.stack(losses).mean()) if losses else float("nan")


def _settings(optimizer: Any) -> _Settings:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _cloned_state(state: Any) -> Any:
    """An optimizer's state with its own tensors, for the same parameters."""
    cloned = copy.copy(state)
    cloned.clear()
    for parameter, values in state.items():
        cloned[parameter] = {
            name: value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
            for name, value in values.items()
        }
    return cloned
