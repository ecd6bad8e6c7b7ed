"""``shadow.rank0.jsonl``: sampled steps of a mixed-precision training, next to FP32 passes over the same batches."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.run_files.jsonl import RankLog


@dataclass(frozen=True)
class LayerShadow:
    """The gradient of one layer's parameters, compared with FP32.

    Attributes:
        cosine: Cosine of the angle between both gradients; ``null`` if one is zero, NaN or infinite.
        norm_ratio: Norm of the run's gradient over the norm in FP32; ``null`` in the same cases.
    """

    cosine: float | None
    norm_ratio: float | None


@dataclass(frozen=True)
class ShadowSample:
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
