"""A training on several CPU processes; run as a script: package, strategy, folder, mode, number of processes.

Modes: ``plain``; ``fail``: rank 1 raises; ``die``: rank 1 is gone without a word; ``windows``: rank 1 records one
window less; ``unshared``: rank 1 has a disk of its own; ``chosen``: only rank 1 records; ``straggler``: the last rank
is slow; ``fsdp``: the model is sharded by FSDP 2, whatever the strategy's name; ``late-data``, ``late-forward``,
``late-callback``: the last rank is late by 30 ms there; ``late-changing``: the ranks take turns to be late.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import lightning.pytorch
import pytorch_lightning
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from lightning_perf import PerfCallback
from lightning_perf.callbacks import session
from lightning_perf.callbacks.run_record.run_folder import claim_run_folder
from tests.callbacks.training import Points, make_trainer, package

LATE_S = 0.03


class LatePoints(Points):
    def __getitem__(self, index: int) -> Any:
        time.sleep(LATE_S / 2)  # two samples per batch
        return super().__getitem__(index)


class LateCallback(lightning.pytorch.Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        time.sleep(LATE_S)


class Steps:
    """What both modules below do; they stand at module level because spawned processes unpickle them.

    As a part of them, `self` is a LightningModule of either package in the methods below.
    """

    def __init__(self, *, mode: str) -> None:
        super().__init__()
        self.mode = mode
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_rank == 1 and batch_idx == 3:
            if self.mode == "fail":
                raise ZeroDivisionError("rank 1 fails")
            if self.mode == "die":
                os._exit(17)
        if self.mode == "straggler" and self.global_rank == self.trainer.world_size - 1:
            time.sleep(0.1)
        turn = batch_idx % self.trainer.world_size if self.mode == "late-changing" else self.trainer.world_size - 1
        if self.mode in ("late-forward", "late-changing") and self.global_rank == turn:
            time.sleep(LATE_S)
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        # Averaged over the ranks, which waits for all of them: reading it on one alone would hang.
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_model(self: Any) -> None:
        if self.mode == "fsdp":
            fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self: Any) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class LightningNet(Steps, lightning.pytorch.LightningModule):
    pass


class PytorchLightningNet(Steps, pytorch_lightning.LightningModule):
    pass


def own_disk(folder: str) -> None:
    """Let this process's files go elsewhere, as on a machine that does not share the folder."""

    def claim(*arguments: Any) -> Path | None:
        claim_run_folder(*arguments)  # a collective call
        elsewhere = Path(folder) / "elsewhere"
        elsewhere.mkdir()
        return elsewhere

    mock.patch.object(session, "claim_run_folder", claim).start()


def fsdp2() -> Any:
    """Lightning's strategy for FSDP 2, which unlike the older one also runs on the CPU."""
    from lightning.pytorch.strategies import ModelParallelStrategy

    return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")


def main(name: str, strategy: str, folder: str, mode: str = "plain", processes: str = "2") -> None:
    net = LightningNet if name == "lightning.pytorch" else PytorchLightningNet
    logger = package(f"{name}.loggers").TensorBoardLogger(folder)
    # Lightning's launcher, torchrun and SLURM each have a variable of their own for it.
    rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_PROCID") or 0)
    if mode == "unshared" and rank == 1:
        own_disk(folder)
    if mode == "die":  # Lightning's launcher would kill rank 0, on a busy machine before it sees its error
        mock.patch("lightning.fabric.strategies.launchers.subprocess_script._ChildProcessObserver.run").start()
    repeat = 1 if mode == "windows" and rank == 1 else 2
    callback = PerfCallback(skip_first=1, warmup=1, active=2, repeat=repeat, ranks=[1] if mode == "chosen" else None)
    last = rank == int(processes) - 1
    trainer = make_trainer(
        Path(folder),
        callback,
        name,
        strategy=fsdp2() if mode == "fsdp" else strategy,
        devices=int(processes),
        logger=logger,
        log_every_n_steps=2,
        max_epochs=1,
        callbacks=[LateCallback()] if mode == "late-callback" and last else [],
    )
    batches = (50 if mode.startswith("late") else 8) * int(processes)
    points = LatePoints if mode == "late-data" and last else Points
    try:
        trainer.fit(net(mode=mode), DataLoader(points(2 * batches), 2))
    except Exception:
        print(f"rank {trainer.global_rank} caught the error", flush=True)
        raise
    print(f"rank {trainer.global_rank} finished after {trainer.global_step} steps", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
