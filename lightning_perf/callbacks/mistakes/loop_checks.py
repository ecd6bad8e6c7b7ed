"""Mistakes around the training loop: stale casts, logged infinities, checkpoints without scaler, and schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.mistakes.found import FoundMistakes, user_place
from lightning_perf.callbacks.precision.autograd_graph import CAST, LEAF, graph_edges
from lightning_perf.callbacks.wrapped_methods import WrappedMethods
from lightning_perf.objects import parts
from lightning_perf.run_files.numerics.precision import LossScaleHistory, PrecisionMistake

_SCALER_KEYS = {"scale", "growth_factor", "backoff_factor"}
_SCALER_DEPTH = 4

LEAST_STEPS = 3
LEAST_SHARE = 0.02
"""A few skipped steps at the start are normal. From both of these on, the schedule is reported."""


class StaleCasts:
    """Looks in autograd's graph for casts of weights that are older than the step that changed those weights.

    autograd numbers its nodes in the order of their creation. A cast from before a step that serves an operator after
    it comes from autocast's cache.
    """

    def __init__(self, found: FoundMistakes) -> None:
        self._found = found
        self._stepped: dict[int, int] = {}

    def on_batch_start(self) -> None:
        """A training batch starts: Lightning's autocast begins again, with an empty cache."""
        self._stepped = {}

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        number = torch._C._autograd._get_sequence_nr()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._stepped[id(parameter)] = number

    def on_before_backward(self, loss: Any) -> None:
        """A backward pass starts."""
        if not self._stepped or not isinstance(loss, torch.Tensor):
            return
        stale = {self._stale_weight(node, cast) for node, cast in graph_edges(loss) if cast.name() == CAST} - {None}
        if not stale:
            return
        name = next((name for weight, name in self._found.parameters.items() if weight in stale), "")
        self._found.report(
            "stale-autocast-cache",
            "A forward pass uses 16-bit weights from before the optimizer's step",
            "Remove your own torch.autocast from training_step: Lightning's is on already and keeps no copies. If "
            "you need it, give cache_enabled=False or call torch.clear_autocast_cache() after the step.",
            f"autocast's cache still holds the 16-bit copy of {name or 'a weight'} from before the step. "
            "It is emptied only where the outermost autocast region ends, and in manual optimization that "
            "is the end of training_step.",
            layer=name.rpartition(".")[0],
        )

    def _stale_weight(self, user: Any, cast: Any) -> int | None:
        """Return the ``id`` of a weight with a cast from before its optimizer's step; None for other casts."""
        leaf = cast.next_functions[0][0] if cast.next_functions else None
        if leaf is None or leaf.name() != LEAF:
            return None
        number = self._stepped.get(id(leaf.variable))
        if number is None or not cast._sequence_nr() < number <= user._sequence_nr():
            return None
        return id(leaf.variable)


class LoggedValues:
    """Notes where values are logged in the first batches, and checks the means at the end of each epoch.

    For the first batches, it wraps the `log` of the LightningModule.
    """

    def __init__(self, trainer: Trainer, module: Module, found: FoundMistakes) -> None:
        self._trainer = trainer
        self._module = module
        self._found = found
        self.places: dict[str, str] = {}
        """The lines that log values in the first batches, by the values' names."""
        self._wrapped = WrappedMethods()

    def start(self) -> None:
        """Start to note places."""
        if not self._wrapped.active:
            self._wrapped.listen(self._module, "log", self._note)

    def _note(self, name: Any = None, *_: Any, **__: Any) -> None:
        if isinstance(name, str) and name not in self.places:
            self.places[name] = user_place(self._found.layers)[1]

    def stop(self) -> None:
        """Give the module its own `log` back."""
        self._wrapped.restore()

    def on_epoch_end(self, loss: torch.Tensor | None) -> None:
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
            self._found.report(
                "logged-infinity",
                f"The logged mean of {base!r} is {shown}, but the loss is finite",
                f"Log finite values only: if torch.isfinite(value): self.log({base!r}, value).",
                "One batch with inf or NaN is enough to make the mean of an epoch inf or NaN. Under "
                "16-mixed such a batch is normal: the scaler skips its step.",
                line=self.places[base],
            )


def loaded_without_scaler(trainer: Trainer, checkpoint: Mapping[str, Any]) -> PrecisionMistake | None:
    """Check a checkpoint from which training resumes."""
    if not _has_scaler(trainer) or "optimizer_states" not in checkpoint or _has_scaler_state(checkpoint):
        return None
    evidence = (
        f"Training resumes with the first loss scale, {float(trainer.scaler.get_scale()):g}, instead of the one that "
        "it had reached. The first steps can overflow and are then skipped."
    )
    return PrecisionMistake(
        "checkpoint-without-scaler",
        "moderate",
        "The checkpoint has no state of the loss scaler",
        (evidence,),
        f"Save checkpoints in 16-mixed with trainer.save_checkpoint, which adds the key "
        f"{type(trainer.precision_plugin).__qualname__!r}, and keep it in on_save_checkpoint. Resume this one with "
        "PrecisionCallback(init_scale=…), the scale that the run had.",
    )


def check_saved(found: FoundMistakes, trainer: Trainer, checkpoint: Mapping[str, Any], users_scaler: Any) -> None:
    """Check that a checkpoint was saved with the state of the scaler, of Lightning or of the program itself."""
    lightnings = _has_scaler(trainer)
    if "optimizer_states" not in checkpoint or _has_scaler_state(checkpoint):
        return
    if users_scaler is not None or lightnings:
        found.report(
            "checkpoint-without-scaler",
            "Checkpoints lack the state of the loss scaler",
            "Do not remove the key 'MixedPrecision' in on_save_checkpoint."
            if lightnings
            else "Save it: checkpoint['scaler'] = self.scaler.state_dict() in on_save_checkpoint, and load it in "
            "on_load_checkpoint. Lightning does both for Trainer(precision='16-mixed').",
            "A run that resumes from them starts with the first loss scale again and can skip its first steps.",
        )


def _has_scaler(trainer: Trainer) -> bool:
    return trainer.scaler is not None and bool(trainer.scaler.is_enabled())


def _has_scaler_state(value: Any, depth: int = _SCALER_DEPTH) -> bool:
    if not issubclass(type(value), dict) or not depth:
        return False
    if dict.keys(value) >= _SCALER_KEYS:
        return True
    return any(_has_scaler_state(one, depth - 1) for name, one in parts(value) if name != "state_dict")


def check_schedule(found: FoundMistakes, history: LossScaleHistory) -> None:
    """Check how many steps the learning-rate schedulers made while the optimizer's step was skipped."""
    ahead = history.scheduler_steps_on_skips
    if ahead < LEAST_STEPS or ahead < LEAST_SHARE * history.attempts:
        return
    found.report(
        "scheduler-on-skips",
        f"The learning-rate schedule is {ahead} steps ahead of the weights",
        f'Avoid the skips: PrecisionCallback("16-mixed", init_scale={min(history.scales):g}), or '
        "precision='bf16-mixed'. Or step the scheduler only after executed steps: set a flag in "
        "optimizer.register_step_post_hook and read it in lr_scheduler_step.",
        f"{history.skipped_steps} of {history.attempts} optimizer steps were skipped, and Lightning still "
        "stepped the schedulers.",
        step=next((event.step for event in history.events if event.kind == "overflow"), 0),
    )
