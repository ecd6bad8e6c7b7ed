"""A training on the processor keeps its pictures in channels first."""

from __future__ import annotations

from lightning_perf.analysis.host.host_compute import HostKind
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.cpu.cpu_savings import host_saving_ns, rows, time_ns
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import each, share_of_step, step_ns, worth_it
from lightning_perf.units import format_duration

__all__ = ["cpu_channels_last"]

SPEED_UP: dict[HostKind, tuple[float, float]] = {
    "pooling": (3.0, 14.0),
    "normalization": (1.5, 4.5),
    "normalization backward": (1.2, 2.6),
    "grouped convolution": (1.0, 2.5),
}
"""Least and most speed-up of operators that find the channels of a pixel side by side."""

ACTIVATION_NS = (-0.3, 3.5)
WEIGHT_NS = (1.0, 2.2)
"""What an element of a convolution's input and output saves, and what one of its weight costs, in a forward and a
backward pass on one thread. oneDNN computes on blocks of channels, and copying tensors into that order and back goes
away (https://pytorch.org/blog/accelerating-pytorch-vision-models-with-channels-last-on-cpu/); weights and their
gradients are copied more often instead. At the lower end the copies cost nothing, being in the cache, and fresh memory
is touched instead. Elements of half the size save and cost half."""

CONVOLUTIONS: tuple[HostKind, ...] = ("convolution", "convolution backward")


def cpu_channels_last(analysis: RankAnalysis) -> Finding | None:
    """Find operators on pictures that would be faster with the channels of a pixel side by side.

    Model: convolutions save by the element of their activations and lose by that of their weights, other kinds of
    operators get faster by a factor. Where many weights meet few pixels, the loss may prevail: then there is no
    finding.
    """
    compute = analysis.host_compute
    if compute is None:
        return None
    convolutions = rows(compute, *CONVOLUTIONS, layout="channels first")
    if not convolutions:
        return None
    others = {kind: time_ns(rows(compute, kind, layout="channels first"), compute) for kind in SPEED_UP}
    threads = (analysis.metadata.processor.threads if analysis.metadata.processor else None) or 1
    savings = []
    for end in (0, 1):
        elements_ns = sum(
            (row.activations * ACTIVATION_NS[end] - row.weights * WEIGHT_NS[1 - end])
            * (0.5 if row.arithmetic in ("bf16", "fp16") else 1.0)
            for row in convolutions
            if row.kind == "convolution backward"
        )
        others_ns = sum(ns * (1 - 1 / SPEED_UP[kind][end]) for kind, ns in others.items())
        savings.append(elements_ns / compute.steps / threads + others_ns)
    convolutions_ns = time_ns(convolutions, compute)
    low_ns, high_ns = host_saving_ns(analysis, *savings)
    high_ns = min(high_ns, convolutions_ns + sum(others.values()))
    if low_ns <= 0 or not worth_it(high_ns, analysis):
        return None
    total_ns = convolutions_ns + sum(others.values())
    named = [
        f"{format_duration(ns)} {each(analysis)} {what}"
        for ns, what in (
            (convolutions_ns + others["grouped convolution"], "in convolutions"),
            (others["pooling"], "in pooling"),
            (others["normalization"] + others["normalization backward"], "in batch norm"),
        )
        if ns > 0
    ]
    return finding(
        "cpu-channels-last",
        f"Channels first on the processor: {share_of_step(total_ns, analysis)} of the step works on pictures "
        "in that order",
        (f"{', '.join(named)}, by the strides of their inputs.",),
        "Keep pictures in channels last: model.to(memory_format=torch.channels_last) before trainer.fit(…); "
        "activations follow the weights.",
        saving_ns=(low_ns, high_ns),
        step_ns=step_ns(analysis),
        model="Convolutions save copies of their inputs and outputs, and copy weights more often; pooling speeds up 3 "
        "to 14 times, batch norm 1.2 to 4.5 times.",
        rank=analysis.rank,
    )
