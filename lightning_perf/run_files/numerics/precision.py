"""``precision.json``: the precision that a run trained in, and its effects on loss scale, gradients and loss."""

from __future__ import annotations

import math
import re
from typing import Literal

from msgspec import Struct

from lightning_perf.run_files.atomic import JsonFile
from lightning_perf.run_files.numerics.samples import Arithmetic, NonFinite, ScaleEvent
from lightning_perf.units import with_minus

PRECISION_NAME = "precision.json"


class Fp32Arithmetic(Struct, frozen=True):
    """The meaning of "FP32" for matrix products and convolutions in this process.

    From Ampere on, NVIDIA GPUs can round the inputs of FP32 products to TF32 (10 bits of mantissa) and use Tensor
    Cores. PyTorch does so for convolutions by default, and for matrix products only on request. See
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices.

    Attributes:
        device_has_tf32: Whether the device has TF32; without it the flags below have no effect.
        tf32_matmul: Whether the flags allow TF32 in matrix products.
        tf32_convolution: Whether the flags allow TF32 in convolutions.
    """

    device_has_tf32: bool
    tf32_matmul: bool
    tf32_convolution: bool

    def __str__(self) -> str:
        """Describe this FP32 in words.

        Example:
            >>> print(Fp32Arithmetic(device_has_tf32=True, tf32_matmul=False, tf32_convolution=True))
            FP32 is TF32 in convolutions and true FP32 in matrix products
            >>> print(Fp32Arithmetic(device_has_tf32=False, tf32_matmul=False, tf32_convolution=True))
            FP32 is true FP32 (the device has no TF32)
        """
        if not self.device_has_tf32:
            return "FP32 is true FP32 (the device has no TF32)"
        if self.tf32_matmul == self.tf32_convolution:
            return "FP32 is TF32" if self.tf32_matmul else "FP32 is true FP32"
        first, second = ("convolutions", "matrix products")
        if self.tf32_matmul:
            first, second = second, first
        return f"FP32 is TF32 in {first} and true FP32 in {second}"


class PrecisionSetting(Struct, frozen=True):
    """The precision that a run trained in, and where it was set.

    Attributes:
        precision: Its name in Lightning: ``32-true``, ``16-mixed``, ``bf16-mixed``, ….
        requested: The precision given to the callback; None when the Trainer decides.
        switched: Whether the callback switched a Trainer that was built without mixed precision.
        weight_cache: Whether autocast keeps a weight's cast for the rest of the forward pass, so that a weight used
            more than once is cast once; None without autocast.
        keep_fp32: Names of the layers kept in FP32.
        fp32: The meaning of FP32 in this run.
        note: A remark for the user, or None.
    """

    precision: str
    requested: str | None
    switched: bool
    weight_cache: bool | None
    keep_fp32: tuple[str, ...]
    fp32: Fp32Arithmetic
    note: str | None = None


class LossScaleHistory(Struct, frozen=True):
    """History of the loss scale in one run.

    Attributes:
        attempts: Optimizer steps tried.
        skipped_steps: Those skipped, one for each overflow.
        scheduler_steps_on_skips: Steps of learning-rate schedulers made although the optimizer's was skipped: the
            schedule is this many steps ahead of the weights.
        trained_ns: Wall time of the training batches, without the waits for data.
        wasted_ns: The part of it spent on skipped steps.
        finished: Whether the run wrote its end; if not, the figures are those of the last event.
        events: The events, in order, the start first.
    """

    attempts: int
    skipped_steps: int
    scheduler_steps_on_skips: int
    trained_ns: int
    wasted_ns: int
    finished: bool
    events: tuple[ScaleEvent, ...]

    @property
    def scales(self) -> tuple[float, ...]:
        """The scale at the start and after each event."""
        return tuple(event.scale for event in self.events)

    @property
    def goodput(self) -> float:
        """Share of the training time with gradients that were used, 0 to 1."""
        return max(0.0, 1 - self.wasted_ns / self.trained_ns) if self.trained_ns else 1.0


class LayerUnderflow(Struct, frozen=True):
    """A layer's row of the table.

    Attributes:
        name: The layer.
        arithmetic: Type that its parameters were computed in.
        values: Number of gradient values counted.
        zero_share: Share of them that is exactly zero. That alone is no underflow: a ReLU makes zeros in FP32 as well.
        subnormal_share: Share of the non-zero ones that is subnormal in fp16, below 2⁻¹⁴.
        vanished: Whether all values were zero and a larger scale showed that they had underflowed; None if there are
            other values or it was not tried.
        median_exponent: Power of two of the median non-zero magnitude; None without such values.
        headroom_doublings: How often the scale may double before the largest value seen overflows; None without such a
            value.
        underflows: Whether fp16 loses gradients in this layer.
        first_exponent: Power of two of the first count.
        counts: Non-zero values by power of two; of a vanished layer those that the larger scale showed.
    """

    name: str
    arithmetic: Arithmetic
    values: int
    zero_share: float
    subnormal_share: float
    vanished: bool | None
    median_exponent: int | None
    headroom_doublings: int | None
    underflows: bool
    first_exponent: int
    counts: tuple[int, ...]


class PrecisionAdvice(Struct, frozen=True):
    """The change that fixes underflow.

    Attributes:
        action: ``init_scale``, ``keep_fp32`` or ``bf16``.
        text: The change and its reason, in a sentence.
        init_scale: The scale to start with, if that is the action.
        keep_fp32: The layers to keep in FP32, if that is.
    """

    action: Literal["init_scale", "keep_fp32", "bf16"]
    text: str
    init_scale: float | None = None
    keep_fp32: tuple[str, ...] = ()


class UnderflowTable(Struct, frozen=True):
    """Gradient underflow of a run, layer by layer.

    Attributes:
        samples: Steps sampled.
        scale: The loss scale at the last sample.
        headroom_doublings: How often the scale may double before the largest gradient seen in fp16 overflows.
        layers: One row per layer, in the order of the module.
        advice: The recommended change, or None if no layer underflows.
    """

    samples: int
    scale: float
    headroom_doublings: int | None
    layers: tuple[LayerUnderflow, ...]
    advice: PrecisionAdvice | None

    @property
    def underflowing(self) -> tuple[LayerUnderflow, ...]:
        """The layers in which fp16 loses gradients."""
        return tuple(layer for layer in self.layers if layer.underflows)


class NumericsDrift(Struct, frozen=True):
    """The first steps of a mixed-precision run, compared with FP32 replays of the same batches from the same weights.

    JSON has no numbers for NaN and the infinities. Such a loss is stored as ``null``.

    Attributes:
        precision: The run's precision.
        mixed_losses: The run's loss on each batch.
        fp32_losses: The loss of the FP32 replay of the same batches in the same order.
        mixed_end: Mean FP32 loss over all these batches with the final weights of the mixed run.
        fp32_end: The same with the weights of the FP32 replay.
        seed_ends: The same with the weights of FP32 replays with other seeds.
        expected_low: Range of the final loss of an FP32 run with another seed, with 95 % probability: lower end.
        expected_high: Upper end of that range.
        beyond_seed_noise: Whether the mixed run ends outside of that range.
    """

    precision: str
    mixed_losses: tuple[float | None, ...]
    fp32_losses: tuple[float | None, ...]
    mixed_end: float | None
    fp32_end: float | None
    seed_ends: tuple[float | None, ...]
    expected_low: float | None
    expected_high: float | None
    beyond_seed_noise: bool


def finite_or_none(value: float) -> float | None:
    """Return a number that JSON can hold: None for NaN and the infinities."""
    return value if math.isfinite(value) else None


def loss_text(value: float | None) -> str:
    """Return a loss as text; `None` is one that is NaN or infinite."""
    return "NaN or infinite" if value is None else with_minus(f"{value:.4g}")


class PrecisionMistake(Struct, frozen=True):
    """A mistake in the use of 16-bit precision, with its place and its fix.

    Attributes:
        kind: The ID of the check that found it, e.g. ``clip-scaled-gradients``.
        severity: ``high`` if it makes the training wrong, ``moderate`` if it costs accuracy or steps.
        title: The mistake in one clause.
        evidence: Facts that show it, one sentence each.
        action: The fix, with the code to change.
        layer: Name of the layer or tensor; empty if it is in no layer.
        line: The user's code as ``file:line``; empty if it is not known.
        step: Number of the step in which it showed.
    """

    kind: str
    severity: Literal["high", "moderate"]
    title: str
    evidence: tuple[str, ...]
    action: str
    layer: str = ""
    line: str = ""
    step: int = 0

    @property
    def where(self) -> str:
        """The place, to append to the title.

        Example:
            >>> PrecisionMistake("half-loss", "high", "", (), "", layer="head", line="model.py:7").where
            ' in head (model.py:7)'
        """
        layer = f" in {self.layer}" if self.layer else ""
        if not self.line:
            return layer
        return f"{layer} ({self.line})" if layer else f" in {self.line}"


class BadRun(Struct, frozen=True):
    """The diagnosis of a run that went wrong in 16 bits, from replays of the first batch that showed it.

    Attributes:
        step: Number of the step.
        precision: The run's precision.
        symptom: ``loss`` if it was NaN or infinite, ``gradients`` if they were, ``drift`` if the run left the range of
            FP32 runs with other seeds.
        bad_weight: The first weight that was NaN or infinite, so that nothing could be replayed; empty without one.
        origin: The operator that made inf or NaN; None if no value was.
        loss: The loss of the batch in the run's precision; None if it is NaN or infinite.
        fp32_finite: Whether loss and gradients of the same batch are finite in FP32; None if that was not tried.
        fp32_loss: The loss of the batch in FP32.
        keep_fp32: The smallest list of layers found that cures the batch; empty if none does.
        cured_loss: The loss of the batch with these layers in FP32.
        trials: Lists that were tried.
        batch: The tensors of the batch with NaN or inf, if the batch is sound with zeros in their place.
        replayed_step: The step of the batch that was run again; None if none was. It is later than `step` on a GPU,
            because the host learns of a loss late.
    """

    step: int
    precision: str
    symptom: Literal["loss", "gradients", "drift"]
    bad_weight: str = ""
    origin: NonFinite | None = None
    loss: float | None = None
    fp32_finite: bool | None = None
    fp32_loss: float | None = None
    keep_fp32: tuple[str, ...] = ()
    cured_loss: float | None = None
    trials: int = 0
    batch: tuple[str, ...] = ()
    replayed_step: int | None = None

    @property
    def title(self) -> str:
        """The symptom in one clause.

        Example:
            >>> BadRun(12, "16-mixed", "loss", batch=("batch['x'] holds 1 NaN or infinite values",)).title
            'The loss turned NaN or infinite in step 12, from NaN or inf in the batch'
        """
        symptom = {
            "loss": f"The loss turned NaN or infinite in step {self.step}",
            "gradients": f"The gradients turned NaN or infinite in step {self.step}",
            "drift": f"The training has left the range of FP32 runs by step {self.step}",
        }[self.symptom]
        cause = "NaN or inf in the batch" if self.batch else self.origin
        return f"{symptom}, from {cause}" if cause else symptom

    @property
    def evidence(self) -> tuple[str, ...]:
        """Facts from the replays of the batch, one sentence each."""
        if self.batch:
            return (*(f"{text}." for text in self.batch), "With zeros in their place, FP32 gives finite gradients.")
        if self.bad_weight:
            return (
                f"Of the weights, {self.bad_weight} is the first that is NaN or infinite.",
                "The weights were NaN or infinite before this step, so the batch could not be run again.",
                "The gradients of the step before were not finite.",
            )
        said = []
        if self.replayed_step not in (None, self.step):
            said.append(f"The batch of step {self.replayed_step} was run again. That of step {self.step} was gone.")
        if (origin := self.origin) is not None:
            reach = "" if origin.largest_input is None else f", and its inputs reach {origin.largest_input:.4g}"
            where = "the backward pass" if origin.backward else "the forward pass"
            value = "NaN" if origin.value == "nan" else "inf"
            # Where FP32 fails too, the operator is that of the pass in FP32.
            result = ", in FP32 too" if self.fp32_finite is False else f". Its result is {origin.dtype}"
            said.append(f"This operator makes {value} in {where}{result}{reach}.")
        if self.fp32_finite is False:
            said.append("In FP32 the same batch also gives NaN or inf, so the precision is not the cause.")
        elif self.fp32_finite:
            loss, fp32 = map(loss_text, (self.loss, self.fp32_loss))
            said.append(f"In FP32 the loss of the same batch is {fp32}. In {self.precision} it is {loss}.")
        if self.keep_fp32 and self.cured_loss is not None:
            said.append(
                f"With {', '.join(self.keep_fp32)} in FP32 it is {self.cured_loss:.4g}. "
                f"{self.trials} lists of layers were tried on this batch."
            )
        return tuple(said)

    @property
    def action(self) -> str:
        """The fix."""
        if self.batch:
            return "Correct these samples, or leave them out: check torch.isfinite(sample).all() in the dataset."
        if self.bad_weight:
            return "Train again with PrecisionCallback(diagnose='gradients'), which checks before the optimizer steps."
        if self.fp32_finite is False:
            return fp32_cure(self.origin)
        if self.keep_fp32:
            names = ", ".join(f'"{name}"' for name in self.keep_fp32)
            return f'PerfCallback(precision="{self.precision}", keep_fp32=[{names}]).'
        if self.origin is None:
            return "Find the layer that differs most from FP32: train again with PerfCallback(shadow=20)."
        at = self.origin.line or "training_step"
        return (
            f"Call .float() on the inputs in {at}: no list of layers cures it, so the operator runs outside of layers."
        )


_CURES: tuple[tuple[str, str], ...] = (
    (
        r"softmax|logsumexp|scaled_dot_product",
        "Leave at least one position of each row unmasked, or mask with torch.finfo(scores.dtype).min instead of -inf",
    ),
    (
        r"sqrt|vector_?norm|cdist",
        "Its slope at 0 is infinite, and below 0 it is NaN: add a small number inside, e.g. torch.sqrt(x + 1e-6)",
    ),
    (r"pow", "The slope of x**p at 0 is infinite for p < 1: use x.clamp_min(1e-6)**p"),
    (r"log", "The logarithm of 0 is -inf, and of less it is NaN: use x.clamp_min(1e-6).log(), or log_softmax"),
    (r"div|reciprocal", "The divisor can be 0: use x / y.clamp_min(1e-6) if y is not negative, or torch.where"),
    (
        r"^_?exp(m1|2)?_?(backward\d+)?$|cosh|sinh",
        "Limit its input: subtract the maximum first, or use logsumexp and log_softmax",
    ),
    (r"acos|asin|atanh", "Its slope at -1 and 1 is infinite: use x.clamp(-1 + 1e-6, 1 - 1e-6)"),
    (r"std|var", "It needs two values or more, and the slope of std at 0 is infinite: use correction=0, and add 1e-6"),
    (r"mean", "It got no values: leave out empty selections"),
)
"""Cures of operators that give NaN or inf in FP32 too, by a pattern for their names."""


def fp32_cure(origin: NonFinite | None) -> str:
    """Return what to do where FP32 gives NaN or inf too. Less precision is not the cause, and more is no cure.

    Example:
        >>> fp32_cure(NonFinite("PowBackward0", "", "model.py:7", True, "inf", "float32"))
        'The slope of x**p at 0 is infinite for p < 1: use x.clamp_min(1e-6)**p (model.py:7).'
    """
    if origin is None:
        return "Lower the learning rate, or clip gradients: Trainer(gradient_clip_val=1.0). FP32 does not help."
    at = f" ({origin.line})" if origin.line else ""
    name = origin.operator.rpartition(":")[2].lower()
    for pattern, cure in _CURES:
        if re.search(pattern, name):
            return f"{cure}{at}."
    return f"Look at the inputs of {origin.operator}{at}: print their smallest and largest values. FP32 does not help."


class RunPrecision(Struct, frozen=True):
    """The precision that a run trained in, and its effects.

    Attributes:
        setting: The precision, and the meaning of FP32.
        loss_scale: The loss scale's history; None without a loss scale.
        underflow: Gradient underflow by layer; None if no step was sampled.
        numerics: The comparison with FP32 replays; None if it was not requested.
        mistakes: Mistakes in the use of 16-bit precision, those that make the training wrong first.
        bad_run: The diagnosis of a run that went wrong; None if it did not.
    """

    setting: PrecisionSetting
    loss_scale: LossScaleHistory | None = None
    underflow: UnderflowTable | None = None
    numerics: NumericsDrift | None = None
    mistakes: tuple[PrecisionMistake, ...] = ()
    bad_run: BadRun | None = None


_FILE = JsonFile(RunPrecision, PRECISION_NAME, "is no description of a run's precision")
write_precision, read_precision = _FILE.write, _FILE.read
