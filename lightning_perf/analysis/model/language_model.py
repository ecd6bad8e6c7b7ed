"""The figures of a language model: tokens per second, padding, and FLOPs per token against the usual formula."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.analysis.core.averaged_steps import averaged_steps, averaged_wall_ns
from lightning_perf.analysis.kernels.efficiency import Efficiency, count_flops
from lightning_perf.analysis.model.attention import Attention
from lightning_perf.trace.trace import Trace

LEAST_COVERAGE = 0.9
"""Below this share of the product kernels' time with known FLOPs, their count per token would mislead."""


@dataclass(frozen=True)
class LanguageModel:
    """The figures of a training on token sequences. Tokens include padding, because the device computes them, too.

    Attributes:
        steps: Averaged steps.
        tokens_per_step: Tokens per step of this process.
        tokens_per_second: Tokens per step divided by the mean step time under the profiler; ``None`` without steps.
        padding: Share of the tokens that are padding, 0 to 1; ``None`` if the batches do not mark padding.
        beyond_longest: Share of the tokens in columns of a batch that are padding in all of its rows; likewise.
        parameters: Parameters of the model without tables of embeddings that are only read; ``None`` if unknown.
        flops_per_token: Counted FLOPs of matrix products per token, forward and backward. Recomputed products count.
            ``None`` if the FLOPs of less than 90 % of the products' time are known.
        formula_flops_per_token: FLOPs per token by the formula 6N + 12·L·d·T; ``None`` if N is unknown.
        attention_flops_per_token: The second term of the formula, from the recorded shapes; 0 if no attention was
            found.
        formula_mfu: MFU with the FLOPs of the formula instead of the counted ones; ``None`` without an MFU.
    """

    steps: int
    tokens_per_step: float
    tokens_per_second: float | None
    padding: float | None
    beyond_longest: float | None
    parameters: int | None
    flops_per_token: float | None
    formula_flops_per_token: float | None
    attention_flops_per_token: float
    formula_mfu: float | None


def language_model(trace: Trace, efficiency: Efficiency | None, found: Attention | None) -> LanguageModel | None:
    """Relate a recording to the tokens that its steps trained on."""
    counted = trace.metadata.tokens
    steps = int(averaged_steps(trace).sum())
    if counted is None or not steps:
        return None
    per_step = counted.tokens / counted.steps
    wall_ns = averaged_wall_ns(trace)
    tokens = per_step * steps
    by_arithmetic, coverage = count_flops(trace)
    flops = sum(by_arithmetic.values())
    known = flops > 0 and not trace.problems.lacks_work and (coverage is None or coverage >= LEAST_COVERAGE)
    attention = 3 * sum(kind.forward_flops for kind in found.kinds) / tokens if found is not None else 0.0
    per_token = flops / tokens if known else None
    formula = None if counted.parameters is None else 6 * counted.parameters + attention
    mfu = efficiency.mfu if efficiency is not None else None
    return LanguageModel(
        steps=steps,
        tokens_per_step=per_step,
        tokens_per_second=tokens / wall_ns * 1e9 if wall_ns and not trace.problems.lacks_work else None,
        padding=counted.padding / counted.counted if counted.counted else None,
        beyond_longest=counted.beyond_longest / counted.counted if counted.counted else None,
        parameters=counted.parameters,
        flops_per_token=per_token,
        formula_flops_per_token=formula,
        attention_flops_per_token=attention,
        formula_mfu=mfu * formula / per_token if mfu is not None and formula is not None and per_token else None,
    )
