"""The logs of number formats, one line per sample or event, each in a file of its own per rank.

- ``underflow.rank0.jsonl``: the gradients of sampled steps, counted by magnitude.
- ``loss_scale.rank0.jsonl``: each change of the loss scale in an fp16 run.
- ``shadow.rank0.jsonl``: sampled steps of a mixed-precision training, next to FP32 passes over the same batches.
- ``fp8.rank0.jsonl``: the scales of an FP8 training, and how its layers round their tensors.
- ``forecast.rank0.jsonl``: how number formats would round the tensors of each layer.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from lightning_perf.run_files.jsonl import RankLog

LOWEST_EXPONENT = -40
"""Gradients below this power of two are counted with it."""

Arithmetic = Literal["fp16", "fp32", "unknown"]


class LayerGradients(Struct, frozen=True):
    """Gradient values of a layer's parameters in one sample, counted by magnitude. Scaled, as fp16 sees them.

    Attributes:
        arithmetic: Type that the layer's parameters were cast to for computing; unknown inside compiled code and
            reentrant checkpoints.
        zeros: Values that are exactly zero.
        nonfinite: Values that are inf or nan.
        first_exponent: Power of two of the first count.
        counts: Values from 2ᵉ to 2ᵉ⁺¹ in magnitude, by ascending e.
    """

    arithmetic: Arithmetic
    zeros: int
    nonfinite: int
    first_exponent: int
    counts: tuple[int, ...]


class GradientSample(Struct, frozen=True):
    """The gradients of one training step, sampled.

    Attributes:
        step: Number of the step, on the axis of the Trainer's own logs.
        scale: The loss scale.
        layers: The gradients of each layer, by name, in the order of the module.
        hidden: For layers with zeros only: their gradients at a much larger scale, counted as if at this one. Non-zero
            values had underflowed. Without them, no gradient reaches the layer.
    """

    step: int
    scale: float
    layers: dict[str, LayerGradients]
    hidden: dict[str, LayerGradients]


GRADIENT_SAMPLES: RankLog[GradientSample] = RankLog(GradientSample, "underflow", "gradient sample", restart=b'{"step"')


class NonFinite(Struct, frozen=True):
    """The operator that made inf or NaN of numbers, found by running a batch again.

    Attributes:
        operator: Its name, in the backward pass that of autograd's node. Empty if the batch could not be run again, and
            only a gradient showed the value.
        layer: The layer that it ran in; empty for the LightningModule itself.
        line: The user's code that called it, in the forward pass, as ``file:line``; empty if it is not known.
        backward: Whether it ran in the backward pass.
        value: ``inf`` or ``nan``.
        dtype: Type of its result.
        largest_input: Largest finite magnitude among its inputs; ``null`` if it is not known.
    """

    operator: str
    layer: str
    line: str
    backward: bool
    value: Literal["inf", "nan"]
    dtype: str
    largest_input: float | None = None

    def __str__(self) -> str:
        """Name the operator and its place.

        Example:
            >>> str(NonFinite("aten::exp", "attention", "model.py:7", False, "inf", "float16"))
            'aten::exp in attention (model.py:7)'
        """
        line = f" ({self.line})" if self.line else ""
        return f"{self.operator or 'a gradient'} in {self.layer or 'training_step'}{line}"


class ScaleEvent(Struct, frozen=True):
    """A change of the loss scale, or the start or end of a run. Between events the scale stays the same.

    Attributes:
        kind: ``start``, ``overflow`` (the optimizer step was skipped), ``growth`` or ``end``.
        step: Number of the step, on the axis of the Trainer's own logs.
        scale: The scale from here on.
        attempts: Optimizer steps tried so far, skipped ones included.
        trained_ns: Wall time of the training batches so far, without the waits for data.
        wasted_ns: For an overflow: wall time of the batches with discarded gradients, else 0.
        scheduler_steps: For an overflow: steps that the learning-rate schedulers of this optimizer still made.
        origin: For an overflow: its origin, if that was searched for and found.
    """

    kind: Literal["start", "overflow", "growth", "end"]
    step: int
    scale: float
    attempts: int
    trained_ns: int
    wasted_ns: int = 0
    scheduler_steps: int = 0
    origin: NonFinite | None = None


SCALE_EVENTS: RankLog[ScaleEvent] = RankLog(ScaleEvent, "loss_scale", "loss-scale event", restart=b'{"kind"')


class LayerShadow(Struct, frozen=True):
    """The gradient of one layer's parameters, compared with FP32.

    Attributes:
        cosine: Cosine of the angle between both gradients; ``null`` if one is zero, NaN or infinite.
        norm_ratio: Norm of the run's gradient over the norm in FP32; ``null`` in the same cases.
    """

    cosine: float | None
    norm_ratio: float | None


class ShadowSample(Struct, frozen=True):
    """One sampled step.

    Attributes:
        step: Number of the step, on the axis of the Trainer's own logs.
        loss: The run's loss on the batch; ``null`` if it is NaN or infinite.
        fp32_loss: The loss in FP32, with the same weights and random numbers.
        whole: The gradient of all parameters.
        layers: The gradient of each layer, by name.
        cost_ns: Time of all shadow passes so far.
        elapsed_ns: Time since the start of training.
    """

    step: int
    loss: float | None
    fp32_loss: float | None
    whole: LayerShadow
    layers: dict[str, LayerShadow]
    cost_ns: int
    elapsed_ns: int


SHADOW: RankLog[ShadowSample] = RankLog(ShadowSample, "shadow", "shadow step", restart=b'{"step"')


class Fp8Tensor(Struct, frozen=True):
    """One tensor of an FP8 layer.

    Attributes:
        format: ``e4m3`` or ``e5m2``.
        largest: Largest magnitude: of the tensor, or the newest one in the library's history.
        scale: Factor before the cast. With a scale per row, the smallest one.
        values: Sampled values other than zero; ``null`` if the library exposes only scales.
        flushed: Those that become zero.
        saturated: Those beyond the largest value of the format.
    """

    format: Literal["e4m3", "e5m2"]
    largest: float
    scale: float
    values: int | None = None
    flushed: int | None = None
    saturated: int | None = None


class Fp8Sample(Struct, frozen=True):
    """One FP8 layer on one step.

    Attributes:
        step: Number of the step, on the axis of the Trainer's own logs.
        layer: Name of the layer.
        library: The library that the layer comes from.
        tensors: Its tensors: ``activation``, ``weight`` and ``gradient`` (of the layer's output).
    """

    step: int
    layer: str
    library: Literal["torchao", "transformer-engine"]
    tensors: dict[str, Fp8Tensor]


FP8: RankLog[Fp8Sample] = RankLog(Fp8Sample, "fp8", "FP8 sample", restart=b'{"step"')


class RoundedCounts(Struct, frozen=True):
    """How a format rounds the sampled values of one tensor.

    Attributes:
        flushed: Values other than zero that become zero.
        saturated: Values beyond the largest value of the format. FP8 and FP4 clamp them, FP16 and BF16 make them inf.
        coarse: Other values that change by more than an eighth.
    """

    flushed: int
    saturated: int
    coarse: int


class TensorSample(Struct, frozen=True):
    """The sampled values of one tensor of a layer.

    Attributes:
        values: Sampled values.
        zeros: Those that are exactly zero.
        largest: Largest magnitude in the whole tensor.
        formats: Counts by format, e.g. ``e4m3``.
    """

    values: int
    zeros: int
    largest: float
    formats: dict[str, RoundedCounts]


class LayerSample(Struct, frozen=True):
    """One layer on one sampled batch.

    Attributes:
        step: Number of the step, on the axis of the Trainer's own logs.
        layer: Name of the layer.
        rows: Rows of the layer's matrix product: tokens or samples, or output positions of a convolution.
        inputs: Length of the product's sums: input features, or input channels times the size of the kernel.
        outputs: Output features or channels.
        sizes: The sizes that fast kernels want to be multiples of 8, 16 or 32, by name.
        gradient_scale: Loss scale that the counts of ``fp16`` assume for gradients.
        tensors: The sampled tensors: ``weight``, ``activation``, and ``gradient`` (of the layer's output).
        products: Signal-to-noise ratio in dB, by product (``forward``, ``input gradient``, ``weight gradient``) and
            recipe. ``null`` if the exact product is zero.
        cost_ns: Cost of the forecast so far.
        elapsed_ns: Time since the start of training.
    """

    step: int
    layer: str
    rows: int
    inputs: int
    outputs: int
    sizes: dict[str, int]
    gradient_scale: float
    tensors: dict[str, TensorSample]
    products: dict[str, dict[str, float | None]]
    cost_ns: int
    elapsed_ns: int


FORECAST: RankLog[LayerSample] = RankLog(LayerSample, "forecast", "layer sample", restart=b'{"step"')
