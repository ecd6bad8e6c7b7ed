"""The rule for trainings on a processor that keep images in channels first."""

from __future__ import annotations

from lightning_perf.analysis.host.host_compute import HostKind
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.cpu.cpu_savings import host_saving_ns, rows, time_ns
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import choose_estimate, each, share_of_step, step_ns, worth_it
from lightning_perf.units import format_duration

__all__ = ["cpu_channels_last"]

SPEED_UP: dict[HostKind, tuple[float, float]] = {
    "pooling": (3.0, 14.0),
    "normalization": (1.5, 4.5),
    "normalization backward": (1.2, 2.6),
    "grouped convolution": (1.0, 2.5),
}
"""Least and most speed-up of operators in channels last."""

ACTIVATION_NS = (-0.3, 3.5)
WEIGHT_NS = (1.0, 2.2)
"""Saving per element of a convolution's input and output, and cost per element of its weight. Both are for a forward
and a backward pass on one thread. oneDNN computes on blocks of channels. In channels last it no longer copies tensors
into blocks and back (https://pytorch.org/blog/accelerating-pytorch-vision-models-with-channels-last-on-cpu/), but it
copies weights and their gradients more often. At the lower end the copies are free, because they stay in the cache, and
fresh memory is touched instead. Elements of half the size save and cost half."""

CONVOLUTIONS: tuple[HostKind, ...] = ("convolution", "convolution backward")


def cpu_channels_last(analysis: RankAnalysis) -> Finding | None:
    """Find operators on images that are faster in channels last.

    Model: convolutions save time per element of their activations and pay per element of their weights. Other operators
    get faster by a factor. If many weights meet few pixels, the cost may exceed the saving, and nothing is found.
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
    estimate = choose_estimate(
        analysis,
        "channels-last",
        (low_ns, high_ns) if low_ns > 0 and worth_it(high_ns, analysis) else None,
        "Convolutions save copies of their inputs and outputs, but copy weights more often. Pooling speeds up 3 to 14 "
        "times, batch norm 1.2 to 4.5 times.",
    )
    if estimate is None:
        return None
    total_ns = convolutions_ns + sum(others.values())
    named = [
        f"{format_duration(ns)} {each(analysis)} {where}"
        for ns, where in (
            (convolutions_ns + others["grouped convolution"], "in convolutions"),
            (others["pooling"], "in pooling"),
            (others["normalization"] + others["normalization backward"], "in batch norm"),
        )
        if ns > 0
    ]
    return finding(
        "cpu-channels-last",
        f"Channels first on a processor: {share_of_step(total_ns, analysis)} of the step works on images in that order",
        (f"{', '.join(named)}. The strides of their inputs show the order.",),
        "Keep images in channels last: model.to(memory_format=torch.channels_last) before trainer.fit(model). "
        "Activations follow the weights.",
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=estimate.model,
        basis=estimate.basis,
        rank=analysis.rank,
    )
