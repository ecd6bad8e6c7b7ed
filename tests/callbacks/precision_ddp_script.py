"""Every combination of settings on two CPU processes; run as a script: the folder for files."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from lightning_perf.callbacks.precision import switch as precision_switch
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from tests.callbacks.precision_training import MODES, Recipe, fit, make_net, same, stock_options


class Averaged(torch.autograd.Function):
    """Averages the gradient over the ranks: a backward pass made by one rank alone would wait for ever."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        averaged = gradient.float()
        torch.distributed.all_reduce(averaged)
        return (averaged / 2).to(gradient.dtype)


def collective_net(recipe: Recipe) -> Any:
    """A net with a collective in its backward pass, and a layer that gets zeros only."""
    net = make_net(recipe)
    net.dead = torch.nn.Linear(8, 4)
    net.forward = lambda x: Averaged.apply(net.fc(net.body(x))) + net.dead(x) * 0.0
    return net


COMBINATIONS: list[tuple[Callable[[Recipe], Any], Recipe, dict[str, Any]]] = [
    (make_net, Recipe(overflow_at=1), {}),
    (make_net, Recipe(overflow_at=1), {"gradient_clip_val": 0.1}),
    (make_net, Recipe(overflow_at=1), {"accumulate_grad_batches": 2}),
    (make_net, Recipe(overflow_at=1, manual=True), {}),
    (make_net, Recipe(overflow_at=1, scheduler=True), {}),
    (make_net, Recipe(overflow_at=1, compiled=True), {}),
    (collective_net, Recipe(overflow_at=1), {"accumulate_grad_batches": 2}),
]


def agree(weights: list[torch.Tensor]) -> bool:
    flat = torch.cat([weight.flatten() for weight in weights])
    gathered = [torch.empty_like(flat) for _ in range(2)]
    torch.distributed.all_gather(gathered, flat)
    return torch.equal(*gathered)


def main(folder: Path) -> None:
    precision_switch._FP16_ON_CPU = True
    for mode in MODES:
        for number, (make, recipe, options) in enumerate(COMBINATIONS):
            here = folder / f"{mode}-{number}"
            common = {"strategy": "ddp", "devices": 2, "max_steps": 3, "use_distributed_sampler": True, **options}
            callback = PrecisionCallback(mode, underflow_every_n_steps=1, locate_overflows=1, keep_fp32=[])
            ours = fit(here, callback, make(recipe), **common)
            stock = fit(here, None, make(recipe), **stock_options(mode), **common)
            rank = ours.trainer.global_rank
            row = {
                "mode": mode,
                "number": number,
                "rank": rank,
                "same": same(ours, stock),
                "weights_agree": agree(ours.weights),
                "skipped": callback.loss_scale.skipped_steps if callback.loss_scale is not None else None,
                "sampled": callback.underflow is not None,
            }
            with (folder / f"rank{rank}.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
