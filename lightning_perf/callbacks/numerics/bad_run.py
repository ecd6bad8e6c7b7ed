"""`diagnose`: a loss that turned NaN or infinite in 16 bits, its origin, FP32 on the same batch, and the cure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch.utils import _pytree as pytree

from lightning_perf.callbacks.host_copy import ScalarCopies
from lightning_perf.callbacks.lightning_compat import Module, holds_whole_model, step_number
from lightning_perf.callbacks.mistakes.found import layer_names
from lightning_perf.callbacks.numerics.loss_scale import Unscaled
from lightning_perf.callbacks.numerics.nonfinite import NonFiniteWatch, is_finite
from lightning_perf.callbacks.numerics.replay import KeptBatch, Replay
from lightning_perf.callbacks.precision.fp32_layers import Fp32Layers, layer_name
from lightning_perf.callbacks.precision.switch import PrecisionError, precision_of
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.precision import BadRun, finite_or_none

Diagnose = Literal["loss", "gradients", "off"]
"""What to check in every step: the loss, the gradients as well, or nothing."""

_Symptom = Literal["loss", "gradients", "drift"]

LOWEST_SCALE = 1.0
"""A loss scale down here means that gradients overflow without any scale: the model itself is the cause."""

TRIED_SCALES = (2.0**14, 2.0**7, 1.0)
"""Loss scales of a replay in FP16: a larger one keeps small gradients, and a smaller one avoids overflows."""

LOSS_TOLERANCE = 0.05
SAME_DIRECTION = 0.9
"""Conditions for a cure. Loss and gradients are finite, and the loss is within the first share of the one in FP32. The
cosine between its gradients and those in FP32 is at least the second number."""


def check_diagnose(diagnose: str) -> None:
    """Check the option."""
    if diagnose not in get_args(Diagnose):
        raise ValueError(f"diagnose={diagnose!r} is unknown: give 'loss', 'gradients' or 'off'")


class LossWatch(FitObserver):
    """Checks the loss of each step, and diagnoses the first batch with NaN or an infinity.

    On a CPU the check costs nothing. On a CUDA device the loss is copied to the host, which learns of a bad one some
    steps later. From then on it waits for each loss, keeps each batch, and diagnoses the first bad one. With
    ``gradients`` it waits in every step.
    """

    consequence = "NaN and infinities are not diagnosed"

    def __init__(self, replay: Replay, diagnose: Diagnose, scaler: Unscaled) -> None:
        self._replay = replay
        self._trainer, self._module = replay.trainer, replay.module
        self._on_cuda = self._trainer.strategy.root_device.type == "cuda"
        self._gradients = self._exact = diagnose == "gradients"
        self._scaler = scaler
        self._batch: KeptBatch | None = None
        self._bad_loss = False
        self._losses = ScalarCopies()
        self._first: int | None = None
        self._result: BadRun | None = None

    @staticmethod
    def applies(replay: Replay) -> bool:
        """Return whether a batch of this training can be run again."""
        return (
            precision_of(replay.trainer) in ("16-mixed", "bf16-mixed")
            and replay.possible
            and holds_whole_model(replay.trainer)
        )

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """A training batch starts: keep it until it ends, if it may be run again."""
        if self._result is None and (self._exact or not self._on_cuda or self._scaler.scale < LOWEST_SCALE):
            self._batch = self._replay.keep(batch, batch_idx)

    def on_before_backward(self, loss: Any) -> None:
        if self._result is not None or not isinstance(loss, torch.Tensor):
            return
        self._bad_loss = False
        self._losses.add(step_number(self._trainer), loss)
        exact = self._exact or not self._on_cuda
        for step, value in self._losses.arrived(wait=exact):
            bad = not math.isfinite(value)
            self._bad_loss = bad and exact  # the last one is that of this batch
            if bad:
                self._first = step if self._first is None else self._first
                self._exact = True

    def on_after_backward(self) -> None:
        if self._result is not None or self._batch is None:
            return
        if self._bad_loss:
            self._diagnose("loss")
        elif self._gradients_are_bad():
            self._diagnose("gradients")

    def on_batch_end(self, outputs: Any) -> None:  # noqa: ARG002
        """A training batch has ended: validation may follow, which needs its memory."""
        self._batch = None

    def examine_drift(self, batch: KeptBatch) -> None:
        """Compare a batch with FP32, because the training has drifted away from FP32."""
        if self._result is None:
            self._batch = batch
            self._diagnose("drift")

    def results(self) -> dict[str, Any]:
        return {"bad_run": self._result}

    def close(self) -> None:
        self._batch, self._losses = None, ScalarCopies()

    def _gradients_are_bad(self) -> bool:
        scaler = self._trainer.scaler
        if scaler is not None and scaler.is_enabled():
            # Scaled ones may overflow: the scaler skips the step, until no scale is left.
            return self._scaler.scale < LOWEST_SCALE
        if not self._gradients:
            return False
        gradients = (p.grad for p in self._module.parameters() if p.grad is not None and not p.grad.is_sparse)
        return not all(map(is_finite, gradients))

    def _diagnose(self, symptom: _Symptom) -> None:
        batch, self._batch = self._batch, None
        if batch is None:
            return
        begin_ns = time.perf_counter_ns()
        replayed = step_number(self._trainer)
        step: int = self._first if self._first is not None else replayed
        precision = str(self._trainer.precision_plugin.precision)
        skipped = self._scaler.first_skipped if symptom == "gradients" else None
        step = step if skipped is None else skipped
        bad = next((layer_name(name) for name, p in self._module.named_parameters() if not is_finite(p)), None)
        if bad is None:
            found = _Diagnosis(self._replay, batch).make(step, precision, symptom)
            self._result = replace(found, replayed_step=replayed)
        else:
            self._result = BadRun(step, precision, symptom, bad_weight=bad)
        self._scaler.leave_out(time.perf_counter_ns() - begin_ns)


class _Pass(Struct, frozen=True):
    """The loss of a pass; its gradients in one FP32 vector, None if the loss or a gradient is not finite."""

    loss: float = float("nan")
    gradients: torch.Tensor | None = None

    def is_like(self, fp32: _Pass) -> bool:
        """Return whether loss and gradients are those of the pass in FP32."""
        if self.gradients is None or fp32.gradients is None or self.gradients.shape != fp32.gradients.shape:
            return False
        if abs(self.loss - fp32.loss) > LOSS_TOLERANCE * max(abs(fp32.loss), 1e-12):
            return False
        norms = float(self.gradients.norm() * fp32.gradients.norm())
        return norms == 0.0 or float(self.gradients @ fp32.gradients) >= SAME_DIRECTION * norms


class _Diagnosis:
    """Replays of one batch: in the run's precision, in FP32, and with more and more layers in FP32."""

    def __init__(self, replay: Replay, batch: KeptBatch) -> None:
        self._replay = replay
        self._batch = batch

    def make(self, step: int, precision: str, symptom: _Symptom) -> BadRun:
        """Diagnose the batch."""
        in_batch = self._in_batch()
        if in_batch:
            return BadRun(step, precision, symptom, batch=in_batch)
        names = layer_names(self._replay.module)
        mixed_watch, fp32_watch = NonFiniteWatch(names), NonFiniteWatch(names)
        self._pass(watch=mixed_watch)
        mixed = self._mixed_pass()
        fp32 = self._pass(fp32=True, watch=fp32_watch)
        sound = fp32.gradients is not None
        loss, fp32_loss = finite_or_none(mixed.loss), finite_or_none(fp32.loss)
        # Where FP32 fails too, its own pass shows the cause, without the overflows of 16 bits.
        origin = mixed_watch.origin((fp32_watch,)) if sound else fp32_watch.origin()
        found = BadRun(step, precision, symptom, origin=origin, loss=loss, fp32_finite=sound, fp32_loss=fp32_loss)
        return found if fp32.gradients is None or mixed.is_like(fp32) else self._with_cure(found, fp32)

    def _in_batch(self) -> tuple[str, ...]:
        """Return the tensors of the batch with inf or NaN, if the batch is sound with zeros in their place."""
        leaves = pytree.tree_flatten_with_path(self._batch.batch)[0]
        bad = {pytree.keystr(path): leaf for path, leaf in leaves if _is_float(leaf) and not is_finite(leaf)}
        if not bad:
            return ()
        clean = pytree.tree_map(lambda leaf: leaf.nan_to_num(0, 0, 0) if _is_float(leaf) else leaf, self._batch.batch)
        if self._pass(fp32=True, batch=replace(self._batch, batch=clean)).gradients is None:
            return ()
        return tuple(_bad_values(place, tensor) for place, tensor in bad.items())

    def _with_cure(self, found: BadRun, fp32: _Pass) -> BadRun:
        search = CureSearch(self._replay.module, lambda names: self._mixed_pass(names).is_like(fp32))
        kept = search.find(found.origin.layer if found.origin is not None else "") or ()
        cured_loss = finite_or_none(self._mixed_pass(kept).loss) if kept else None
        return replace(found, keep_fp32=kept, cured_loss=cured_loss, trials=search.trials)

    def _mixed_pass(self, in_fp32: Sequence[str] = ()) -> _Pass:
        """Run the batch in the run's precision, with some layers in FP32, at the first loss scale that does."""
        trainer = self._replay.trainer
        try:
            layers = Fp32Layers(self._replay.module, in_fp32, str(trainer.strategy.root_device.type))
        except PrecisionError:  # such a layer is never called by itself
            return _Pass()
        try:
            found = _Pass()
            for scale in TRIED_SCALES if trainer.precision_plugin.precision == "16-mixed" else (1.0,):
                found = self._pass(scale)
                if found.gradients is not None or not math.isfinite(found.loss):
                    break
            return found
        finally:
            layers.undo()

    def _pass(
        self,
        scale: float = 1.0,
        *,
        fp32: bool = False,
        watch: NonFiniteWatch | None = None,
        batch: KeptBatch | None = None,
    ) -> _Pass:
        replayed = self._replay.run(batch or self._batch, scale=scale, fp32=fp32, watch=watch)
        if replayed is None:
            return _Pass()
        loss = float(replayed.loss)
        dense = [g.to_dense() if g.is_sparse else g for g in replayed.gradients.values()]
        sound = bool(dense) and math.isfinite(loss) and all(map(is_finite, dense))
        return _Pass(loss, torch.cat([g.flatten().float() / scale for g in dense]) if sound else None)


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _bad_values(place: str, tensor: torch.Tensor) -> str:
    """Return how many values of a tensor of the batch are NaN or infinite, and in how many samples."""
    bad = ~torch.isfinite(tensor)
    text = f"batch{place} holds {int(bad.sum()):,} NaN or infinite values"
    if not tensor.dim():
        return text
    samples = bad.flatten(1).any(1) if tensor.dim() > 1 else bad
    first = int(samples.nonzero()[0, 0])
    return f"{text}, in {int(samples.sum()):,} of {len(tensor):,} samples, first {first}"


MAX_TRIALS = 64
MAX_SECONDS = 60.0
"""Limits of a search. It then returns the best list so far."""


class CureSearch:
    """Searches the layers of a module for a minimal list that cures a batch.

    No layer of the result can be left out. A container is replaced by layers inside it, as long as those suffice.
    `cures` tells whether a batch is sound with these layers in FP32.
    """

    def __init__(
        self,
        module: Module,
        cures: Callable[[tuple[str, ...]], bool],
        *,
        max_trials: int = MAX_TRIALS,
        max_seconds: float = MAX_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trials = 0
        """Lists tried so far."""
        self._cures = cures
        self._max_trials = max_trials
        self._until = clock() + max_seconds
        self._clock = clock
        self._known: dict[frozenset[str], bool] = {}
        self._best: tuple[str, ...] | None = None
        self._children: dict[str, tuple[str, ...]] = {}
        for name, layer in module.named_modules():
            inner = [child for child, _ in layer.named_children() if child != "_orig_mod"]
            self._children[layer_name(name)] = tuple(layer_name(f"{name}.{child}".lstrip(".")) for child in inner)
        self._order = {name: number for number, name in enumerate(self._children)}

    def find(self, suspect: str) -> tuple[str, ...] | None:
        """Return a minimal list in the module's order; None if not even all layers in FP32 cure the batch.

        The layer `suspect` is tried first, with the layers around it. Beyond the limits, this is the best list so far.
        """
        for name in _with_parents(suspect):
            if name in self._children and self._test((name,)):
                return self._finished(self._refined((name,)))
        top = self._children[""]
        return self._finished(self._refined(self._minimal(top, ()))) if self._test(top) else self._best

    def _finished(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        return names if self._known.get(frozenset(names)) else self._best

    def _test(self, names: Sequence[str]) -> bool:
        """Return whether a list cures the batch; False without a trial beyond the limits."""
        key = frozenset(names)
        if key not in self._known and self.trials < self._max_trials and self._clock() <= self._until:
            self.trials += 1
            self._known[key] = bool(names) and self._cures(self._sorted(names))
            if self._known[key] and (self._best is None or len(names) <= len(self._best)):
                self._best = self._sorted(names)
        return self._known.get(key, False)

    def _sorted(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=lambda name: self._order.get(name, 0)))

    def _minimal(self, names: tuple[str, ...], fixed: tuple[str, ...], *, grown: bool = False) -> tuple[str, ...]:
        """Return a minimal part of `names` that cures together with `fixed`, which may suffice if it has grown.

        This is QuickXplain (Junker, *QuickXplain: Preferred Explanations and Relaxations for Over-Constrained
        Problems*, AAAI 2004).
        """
        if grown and self._test(fixed):
            return ()
        if len(names) == 1:
            return names
        first, second = names[: len(names) // 2], names[len(names) // 2 :]
        kept = self._minimal(second, (*fixed, *first), grown=True)
        return (*self._minimal(first, (*fixed, *kept), grown=bool(kept)), *kept)

    def _refined(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Replace containers by layers inside them."""
        done: tuple[str, ...] = ()
        left = list(names)
        while left:
            name = left.pop(0)
            children, others = self._children.get(name, ()), (*done, *left)
            if children and self._test((*others, *children)):
                left = [*self._minimal(children, others), *left]
            else:
                done = (*done, name)
        return self._sorted(done)


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
