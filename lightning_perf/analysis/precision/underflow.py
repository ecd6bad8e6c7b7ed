"""Gradient underflow in fp16: how many small gradients are lost at the loss scale of a run, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lightning_perf.run_files.numerics.precision import LayerUnderflow, PrecisionAdvice, UnderflowTable
from lightning_perf.run_files.numerics.samples import GradientSample, LayerGradients
from lightning_perf.trace.columns import Int64Array

FP16_SMALLEST_NORMAL_EXPONENT = -14
"""Below 2⁻¹⁴ an fp16 value has fewer than 11 significant bits (IEEE 754-2019, binary16)."""

FP16_LARGEST_EXPONENT = 15
"""The largest fp16 value is 65504, just below 2¹⁶."""

UNDERFLOW_LIMIT = 0.10
"""Share of a layer's gradient values that may be subnormal before the layer is named.

A subnormal value keeps some of its bits. With a tenth of the values at reduced precision, no harm is visible. Networks
trained well in Micikevicius et al., Mixed Precision Training (2018), figure 3, with about 5 % of subnormal values.
"""

SCALE_LIMIT = 2.0**24
"""A higher initial scale is not recommended: in most runs torch would back off from it for many steps."""

FEW_LAYERS = 0.25
"""Up to this share of the layers, keeping the affected ones in FP32 costs less than leaving fp16."""


def tabulate_underflow(samples: Sequence[GradientSample]) -> UnderflowTable:
    """Add up samples into a table, and recommend a change.

    Each sample counts at its own scale. Samples of overflowing steps are left out if there are others, because their
    scale was too high.

    Example:
        >>> small = LayerGradients("fp16", zeros=0, nonfinite=0, first_exponent=-16, counts=(60, 40))
        >>> sound = LayerGradients("fp16", zeros=50, nonfinite=0, first_exponent=-12, counts=(30, 20))
        >>> table = tabulate_underflow([GradientSample(0, 1024.0, {"fc1": small, "fc2": sound}, {})])
        >>> [(layer.name, layer.subnormal_share, layer.underflows) for layer in table.layers]
        [('fc1', 1.0, True), ('fc2', 0.0, False)]
        >>> table.advice.init_scale
        4096.0
    """
    if not samples:
        raise ValueError("no gradient samples: the run ended before its first sampled step")
    sound = [sample for sample in samples if not any(layer.nonfinite for layer in sample.layers.values())]
    kept = sound or list(samples)
    names = list(dict.fromkeys(name for sample in kept for name in sample.layers))
    rows = tuple(_row(name, kept) for name in names)
    headroom = min(
        (row.headroom_doublings for row in rows if row.headroom_doublings is not None and row.arithmetic != "fp32"),
        default=None,
    )
    scale = kept[-1].scale
    return UnderflowTable(len(kept), scale, headroom, rows, _advise(rows, scale, headroom))


def _row(name: str, samples: Sequence[GradientSample]) -> LayerUnderflow:
    seen = [sample.layers[name] for sample in samples if name in sample.layers]
    first, counts = _add_counts(seen)
    zeros, nonzero = sum(layer.zeros for layer in seen), int(counts.sum())
    values = zeros + nonzero + sum(layer.nonfinite for layer in seen)
    vanished = None
    tried = [sample.hidden[name] for sample in samples if name in sample.hidden]
    if tried and not nonzero:
        first, counts = _add_counts(tried)
        nonzero = int(counts.sum())
        vanished = nonzero > 0
    subnormal = _subnormal_share(first, counts)
    arithmetic = seen[-1].arithmetic
    return LayerUnderflow(
        name=name,
        arithmetic=arithmetic,
        values=values,
        zero_share=zeros / values if values else 0.0,
        subnormal_share=subnormal,
        vanished=vanished,
        median_exponent=first + int(np.searchsorted(counts.cumsum(), nonzero / 2)) if nonzero else None,
        headroom_doublings=FP16_LARGEST_EXPONENT - (first + int(np.flatnonzero(counts)[-1])) if nonzero else None,
        underflows=arithmetic != "fp32" and subnormal > UNDERFLOW_LIMIT,
        first_exponent=first,
        counts=tuple(counts.tolist()),
    )


def _add_counts(layers: Sequence[LayerGradients]) -> tuple[int, Int64Array]:
    first = min(layer.first_exponent for layer in layers)
    last = max(layer.first_exponent + len(layer.counts) for layer in layers)
    counts = np.zeros(last - first, dtype=np.int64)
    for layer in layers:
        offset = layer.first_exponent - first
        counts[offset : offset + len(layer.counts)] += np.array(layer.counts, dtype=np.int64)
    return first, counts


def _subnormal_share(first_exponent: int, counts: Int64Array) -> float:
    nonzero = int(counts.sum())
    below = max(FP16_SMALLEST_NORMAL_EXPONENT - first_exponent, 0)
    return int(counts[:below].sum()) / nonzero if nonzero else 0.0


def _advise(rows: Sequence[LayerUnderflow], scale: float, headroom: int | None) -> PrecisionAdvice | None:
    """Return the smallest change that fixes it: a larger initial scale, a few layers in FP32, or bf16."""
    concerned = [row for row in rows if row.underflows]
    if not concerned:
        return None
    doublings = max(map(_doublings_needed, concerned))
    if doublings <= (headroom or 0) and scale * 2.0**doublings <= SCALE_LIMIT:
        wanted = scale * 2.0**doublings
        return PrecisionAdvice(
            "init_scale",
            f'Start with a larger loss scale that fits all sampled gradients: PrecisionCallback("16-mixed", '
            f"init_scale={wanted:g})",
            init_scale=wanted,
        )
    computed = [row for row in rows if row.arithmetic != "fp32"]
    names = tuple(row.name for row in concerned)
    if len(concerned) <= max(1, math.floor(FEW_LAYERS * len(computed))):
        listed = ", ".join(repr(name) for name in names)
        return PrecisionAdvice(
            "keep_fp32", f"Keep {'this layer' if len(names) == 1 else 'these layers'} in FP32: keep_fp32=[{listed}]",
            keep_fp32=names,
        )  # fmt: skip
    return PrecisionAdvice(
        "bf16",
        f"Use bf16-mixed, which has the exponents of FP32: {len(concerned)} of {len(computed)} layers underflow, and "
        "no single loss scale fits all gradients",
    )


def _doublings_needed(row: LayerUnderflow) -> int:
    """Return how often the scale must double until the layer's gradients fit."""
    counts = np.array(row.counts, dtype=np.int64)
    doublings = 0
    while _subnormal_share(row.first_exponent + doublings, counts) > UNDERFLOW_LIMIT:
        doublings += 1
    return doublings
