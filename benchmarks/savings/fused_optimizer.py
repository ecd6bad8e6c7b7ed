"""Compare fused optimizers with a loop over parameters, on a processor.

Each optimizer with ``fused=True`` updates networks of few and many, small and large parameters, alternating between a
loop and its fused form. Nothing else runs in between, so these figures exclude the effect of a training on the caches,
which `benchmarks.savings.planted` includes. The factors of the finding ``unfused-optimizer`` come from here.

Run as ``python -m benchmarks.savings.fused_optimizer`` on a quiet machine: prints a table, and writes it to
``benchmarks/results/fused_optimizer.md``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torchvision import models

from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.processes import load_average
from benchmarks.versions import versions_text
from lightning_perf.machine.environment import cpu_name

RESULTS = Path(__file__).parents[1] / "results" / "fused_optimizer.md"
METHOD = 1
"""Version of the method: figures of different versions are not comparable."""

ROUNDS = 15
WARM_UP = 2

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "six layers of 64": lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))),
    "MobileNetV3-small": models.mobilenet_v3_small,
    "ResNet-18": models.resnet18,
    "ConvNeXt-tiny": models.convnext_tiny,
}

OPTIMIZERS: dict[str, Callable[[Sequence[Tensor], bool], Optimizer]] = {
    "SGD": lambda parameters, fused: SGD(parameters, 1e-3, fused=fused),
    "SGD, momentum": lambda parameters, fused: SGD(parameters, 1e-3, momentum=0.9, fused=fused),
    "SGD, Nesterov": lambda parameters, fused: SGD(parameters, 1e-3, momentum=0.9, nesterov=True, fused=fused),
    "SGD, weight decay": lambda parameters, fused: SGD(parameters, 1e-3, weight_decay=1e-4, fused=fused),
    "Adam": lambda parameters, fused: Adam(parameters, 1e-3, fused=fused),
    "Adam, amsgrad": lambda parameters, fused: Adam(parameters, 1e-3, amsgrad=True, fused=fused),
    "AdamW": lambda parameters, fused: AdamW(parameters, 1e-3, fused=fused),
    "Adagrad": lambda parameters, fused: Adagrad(parameters, 1e-3, fused=fused),
}


def update_ms(make: Callable[[], nn.Module], optimizer: Callable[[Sequence[Tensor], bool], Optimizer]) -> list[float]:
    """Median times of an update in a loop and of a fused one."""
    steps = []
    for fused in (False, True):
        parameters = list(make().parameters())
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter) * 1e-3
        steps.append(optimizer(parameters, fused).step)
    times: list[list[float]] = [[], []]
    for turn in range(WARM_UP + ROUNDS):
        for own, step in zip(times, steps, strict=True):
            begin_s = time.perf_counter()
            step()
            if turn >= WARM_UP:
                own.append(1e3 * (time.perf_counter() - begin_s))
    return [statistics.median(own) for own in times]


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__, RESULTS)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for threads in (1, len(os.sched_getaffinity(0))):
        torch.set_num_threads(threads)
        for network, make in NETWORKS.items():
            for name, optimizer in OPTIMIZERS.items():
                loop_ms, fused_ms = update_ms(make, optimizer)
                figures = f"{loop_ms:.3g}", f"{fused_ms:.3g}", f"{fused_ms / loop_ms:.2f}"
                rows.append((network, name, threads, *figures))
                print(*rows[-1], sep=" | ", flush=True)
    heads = ("network", "optimizer", "threads", "loop, ms", "fused, ms", "remains")
    write_page(
        options.results,
        "# Fused optimizers on a processor\n\nWritten by `python -m benchmarks.savings.fused_optimizer`, "
        f"method {METHOD}: medians of {ROUNDS} alternating updates, nothing else between; {cpu_name()}; load average "
        f"{load_average()} at the end, this benchmark's own part in it. {versions_text()}.\n\n"
        f"{markdown_table(heads, rows)}\n",
    )


if __name__ == "__main__":
    main()
