"""The rule for trainings in FP32 on a processor with bfloat16 instructions."""

from __future__ import annotations

from lightning_perf.analysis.host.host_compute import HostKind
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.cpu.cpu_savings import host_saving_ns, rows, time_ns
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import choose_estimate, each, share_of_step, step_ns, worth_it
from lightning_perf.units import format_duration

__all__ = ["cpu_bf16"]

SPEED_UP = {"amx_bf16": (1.5, 8.0), "avx512_bf16": (1.5, 2.75), "bf16": (1.1, 4.0)}
"""Least and most speed-up of FP32 products by the processor's instructions, the fastest first.

AVX-512: measured (``benchmarks/results/planted.md``), twice the products per instruction and half the bytes. AMX: 1,024
operations per cycle against 64 (https://docs.pytorch.org/tutorials/recipes/amx.html); training reaches half of that at
most, since memory sets the pace. Arm: BFMMLA does four times the products of FMLA. The last two were not measured.
"""

CALL_NS = (10_000.0, 80_000.0)
"""Extra cost of a product per call, at least and at most: casts of its operands, and its set-up."""

CAST_NS = (0.3, 3.0)
"""Cost to cast an element of a weight and its gradient on one thread: 12 bytes in the cache or in fresh memory."""

GAINS: dict[HostKind, tuple[float, float]] = {
    "normalization": (1.0, 2.5),
    "normalization backward": (1.0, 2.5),
    "elementwise": (1.0, 3.0),
    "batched product": (0.9, 1.5),
    "attention": (0.25, 1.5),
    "long attention": (0.85, 2.0),
    "grouped convolution": (0.33, 1.0),
}
"""Least and most speed-up of the other operators that autocast runs in bfloat16. Some of them get slower: attention
over short sequences took up to four times as long, and the backward pass of grouped convolutions three times."""

PRODUCTS: tuple[HostKind, ...] = ("convolution", "convolution backward", "matrix product")


def cpu_bf16(analysis: RankAnalysis) -> Finding | None:
    """Find FP32 trainings on a processor that mixed precision is sure to speed up.

    Model: products get faster by a factor, and each call and each element of a weight costs casts. Other operators have
    factors of their own, some of them below one.
    """
    compute, processor = analysis.host_compute, analysis.metadata.processor
    if compute is None or processor is None or processor.bf16 is None:
        return None
    instruction = next((name for name in SPEED_UP if name in processor.bf16), None)
    if instruction is None:
        return None
    products = rows(compute, *PRODUCTS, arithmetic="fp32")
    calls = sum(row.calls for row in products) / compute.steps
    weights = sum(row.weights for row in products if row.kind != "convolution backward") / compute.steps
    products_ns = time_ns(products, compute)
    savings = []
    for end, factor in enumerate(SPEED_UP[instruction]):
        others = sum(
            time_ns(rows(compute, kind, arithmetic="fp32"), compute) * (1 - 1 / factors[end])
            for kind, factors in GAINS.items()
        )
        casts_ns = calls * CALL_NS[1 - end] + weights * CAST_NS[1 - end] / (processor.threads or 1)
        savings.append(products_ns * (1 - 1 / factor) + others - casts_ns)
    general_ns = host_saving_ns(analysis, *savings)
    slow, fast = SPEED_UP[instruction]
    estimate = choose_estimate(
        analysis,
        "bf16",
        general_ns if general_ns[0] > 0 and worth_it(general_ns[1], analysis) else None,
        f"Products speed up {slow:g} to {fast:g} times, normalization up to 2.5 times. Each call and each weight costs "
        "casts.",
    )
    if estimate is None or not products_ns:
        return None
    convolutions_ns = time_ns((row for row in products if row.kind != "matrix product"), compute)
    parts = [
        f"{format_duration(ns)} {each(analysis)} in {kind}"
        for ns, kind in ((convolutions_ns, "convolutions"), (products_ns - convolutions_ns, "matrix products"))
        if ns > 0
    ]
    return finding(
        "cpu-bf16",
        f"FP32 on a processor with bfloat16: FP32 products take {share_of_step(products_ns, analysis)} of the step",
        (f"{' and '.join(parts)}. {processor.name or 'The processor'} has {instruction}.",),
        'Train in mixed precision: Trainer(precision="bf16-mixed").',
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=estimate.model,
        basis=estimate.basis,
        rank=analysis.rank,
    )
