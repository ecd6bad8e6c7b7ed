"""A plain loop on several CPU processes; run once a rank: folder, mode (``ddp``, ``fabric`` or ``unconnected``)."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lightning_perf import PerfLoop


def main(folder: str, mode: str) -> None:
    torch.manual_seed(0)
    model: Any = torch.nn.Linear(4, 2)
    data = TensorDataset(torch.rand(32, 4), torch.arange(32) % 2)
    loader: Any
    if mode == "fabric":
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
        loader = fabric.setup_dataloaders(DataLoader(data, 2))
    elif mode == "ddp":
        distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = DataLoader(data, 2, sampler=DistributedSampler(data))
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = DataLoader(data, 4)
    with PerfLoop(model, optimizer, dirpath=folder, skip_first=1, warmup=1, active=2) as perf:
        for inputs, labels in perf.steps(loader):
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
