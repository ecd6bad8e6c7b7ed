"""A training on two CPU processes; run as a script: package, strategy, folder, and ``fail`` to fail on rank 1."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytorch_lightning
import torch

from lightning_perf import PerfCallback
from tests.callbacks.training import loader, make_trainer, package


class Steps:
    """What both modules below do; they stand at module level because spawned processes unpickle them."""

    def __init__(self, *, fail: bool) -> None:
        super().__init__()
        self.fail = fail
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.fail and self.global_rank == 1 and batch_idx == 3:
            raise ZeroDivisionError("rank 1 fails")
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        # Averaged over the ranks, which waits for all of them: reading it on one alone would hang.
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class LightningNet(Steps, lightning.pytorch.LightningModule):
    pass


class PytorchLightningNet(Steps, pytorch_lightning.LightningModule):
    pass


def main(name: str, strategy: str, folder: str, fail: str = "") -> None:
    net = LightningNet if name == "lightning.pytorch" else PytorchLightningNet
    logger = package(f"{name}.loggers").TensorBoardLogger(folder)
    callback = PerfCallback(skip_first=1, warmup=1, active=2, repeat=2)
    trainer = make_trainer(
        Path(folder), callback, name, strategy=strategy, devices=2, logger=logger, log_every_n_steps=2, max_epochs=1
    )
    trainer.fit(net(fail=bool(fail)), loader(16))  # eight batches a rank
    print(f"rank {trainer.global_rank} finished after {trainer.global_step} steps", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
