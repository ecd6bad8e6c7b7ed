"""The rule for 16-bit products that run without Tensor Cores."""

from __future__ import annotations

from lightning_perf.analysis.kernels.tensor_core_eligibility import REASONS
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import counted, device_saving_ns, each, step_ns, worth_it
from lightning_perf.units import format_duration

__all__ = ["tensor_cores"]

ACTIONS = {
    "dimensions": (
        "Make the sizes of layers, vocabularies and batches multiples of 8 (FP16, BF16) or 16 (INT8, FP8), e.g. "
        "torch.nn.Embedding(50304, …) instead of 50257 and batch_size=32 instead of 30."
    ),
    "fp32_only_operator": (
        "Autocast keeps these operators in FP32 for its range. If you do not need that, call them on 16-bit inputs "
        'inside torch.autocast("cuda", enabled=False).'
    ),
    "library_choice": (
        "Types and sizes fit, but the library chose another kernel. Try channels last, a larger batch, or "
        "Trainer(benchmark=True)."
    ),
}
"""Fixes by reason. Other reasons have separate rules."""

SPEED_UP = (1.5, 3.0)
"""Least and most speed-up of a product by Tensor Cores. Large square products gain more."""


def tensor_cores(analysis: RankAnalysis) -> Finding | None:
    """Find products that could use Tensor Cores, and the main reason against it.

    Model: the products with that reason speed up 1.5 to 3 times.
    """
    arithmetic = analysis.arithmetic
    if arithmetic is None:
        return None
    unused = [row for row in arithmetic.eligible_unused if row.reason in ACTIONS]
    if not unused:
        return None
    main = unused[0]
    steps = max(arithmetic.steps, 1)
    time_ns = main.time_ns / steps
    low_ns, high_ns = device_saving_ns(analysis, *(time_ns * (1 - 1 / factor) for factor in SPEED_UP))
    if not worth_it(high_ns, analysis):
        return None
    return finding(
        "tensor-cores",
        f"Tensor Cores unused: matrix products take {format_duration(time_ns)} {each(analysis)} without them",
        (
            (
                f"{counted(main.kernels / steps, 'kernel')} {each(analysis)}, launched by "
                f"{', '.join(main.operators[:3])}: {REASONS[main.reason]}."
            ),
        ),
        ACTIONS[main.reason],
        saving_ns=(low_ns, high_ns),
        step_ns=step_ns(analysis),
        model="These products speed up 1.5 to 3 times.",
        rank=analysis.rank,
    )
