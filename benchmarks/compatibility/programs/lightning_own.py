"""Trainings with Lightning and the packages around it."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from benchmarks.compatibility.checkouts import checkout, write_mnist
from benchmarks.compatibility.session import Session, lightning_module


def lightning_transformer(session: Session) -> Any:
    """Train Lightning's own demo Transformer on random words."""
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.demos import Transformer

    pl.seed_everything(1)
    module = lightning_module(
        Transformer(vocab_size=500, ninp=64, nhead=2, nhid=128, nlayers=2),
        lambda net, batch: torch.nn.functional.nll_loss(net(*batch), batch[1].view(-1)),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    words = torch.randint(0, 500, (400, 2, 35))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(words[:, 0], words[:, 1]), batch_size=4)
    pl.Trainer(**session.trainer_options(max_epochs=1)).fit(module, loader)
    return module


def lightning_gan(session: Session) -> Any:
    """Train two networks with two optimizers by manual optimization, as in Lightning's examples of a GAN."""
    import lightning.pytorch as pl
    import torch
    from torch import nn

    class Gan(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 784))
            self.judge = nn.Sequential(nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

        def training_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
            optimizers: Any = self.optimizers()
            for_generator, for_judge = optimizers
            drawn = self.generator(torch.randn(len(batch[0]), 16, device=self.device))
            loss = nn.functional.softplus(-self.judge(drawn)).mean()
            for_generator.zero_grad()
            self.manual_backward(loss)
            for_generator.step()
            loss = nn.functional.softplus(self.judge(drawn.detach())).mean()
            loss = loss + nn.functional.softplus(-self.judge(batch[0])).mean()
            for_judge.zero_grad()
            self.manual_backward(loss)
            for_judge.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(part.parameters(), 2e-4) for part in (self.generator, self.judge)]

    pl.seed_everything(1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(2000, 784)), batch_size=16)
    module = Gan()
    pl.Trainer(**session.trainer_options(max_epochs=1)).fit(module, loader)
    return module


def torchmetrics_heavy(session: Session) -> Any:
    """Train a small classifier that updates and logs twelve metrics in each step, and validates."""
    import lightning.pytorch as pl
    import torch
    import torchmetrics.classification as of_classes
    from torch import nn
    from torchmetrics import Metric, MetricCollection

    class Watched(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
            metrics: dict[str, Metric | MetricCollection] = {
                kind.__name__ + average: kind(num_classes=10, average=average)
                for kind in (
                    of_classes.MulticlassAccuracy,
                    of_classes.MulticlassPrecision,
                    of_classes.MulticlassRecall,
                    of_classes.MulticlassF1Score,
                    of_classes.MulticlassSpecificity,
                    of_classes.MulticlassAUROC,
                )
                for average in ("macro", "weighted")
            }
            collection = MetricCollection(metrics)
            self.for_training, self.for_validation = collection.clone("train/"), collection.clone("val/")

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
            logits = self.net(batch[0])
            self.for_training.update(logits.softmax(-1).detach(), batch[1])
            self.log_dict(self.for_training, on_step=True, on_epoch=True)
            return nn.functional.cross_entropy(logits, batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
            self.for_validation.update(self.net(batch[0]).softmax(-1), batch[1])
            self.log_dict(self.for_validation)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    pl.seed_everything(1)
    data = torch.utils.data.TensorDataset(torch.rand(1920, 64), torch.randint(0, 10, (1920,)))
    training, validation = torch.utils.data.random_split(data, [1600, 320])
    module = Watched()
    trainer = pl.Trainer(**session.trainer_options(max_epochs=2))
    trainer.fit(
        module,
        torch.utils.data.DataLoader(training, batch_size=32, shuffle=True),
        torch.utils.data.DataLoader(validation, batch_size=32),
    )
    return module


def lightning_hydra_template(session: Session) -> Any:
    """Run the template's own ``train`` with its configuration, which names the callbacks as a user's would."""
    import hydra
    from omegaconf import OmegaConf, open_dict

    template = checkout("lightning-hydra-template")
    sys.path.insert(0, str(template))
    os.environ["PROJECT_ROOT"] = str(template)
    write_mnist(session.folder / "data" / "MNIST" / "raw", training=5000, test=1000)
    with hydra.initialize_config_dir(str(template / "configs"), version_base="1.3"):
        overrides = ("logger=[]", "trainer=cpu", "trainer.max_epochs=1", "trainer.min_epochs=1", "test=false", "seed=1")
        split = "data.train_val_test_split=[4000,1000,1000]"
        config = hydra.compose("train", [*overrides, split, "callbacks=none"], return_hydra_config=False)
    with open_dict(config):
        config.paths.data_dir = f"{session.folder}/data/"
        config.paths.output_dir = str(session.folder)
        home = "benchmarks.compatibility.session"
        names = ["current_clock", *(["current_perf_callback"] if session.measured else [])]
        config.callbacks = OmegaConf.create({name: {"_target_": f"{home}.{name}"} for name in names})
    train = importlib.import_module("src.train").train
    _, made = train(config)
    return made["model"]


def lightning_bolts(session: Session) -> Any:
    """Train the logistic regression of Lightning Bolts."""
    import pytorch_lightning as pl
    import torch
    from pl_bolts.models.regression import LogisticRegression

    pl.seed_everything(1)
    data = torch.utils.data.TensorDataset(torch.rand(800, 16), torch.randint(0, 2, (800,)))
    module = LogisticRegression(input_dim=16, num_classes=2)
    pl.Trainer(**session.trainer_options(max_epochs=1)).fit(module, torch.utils.data.DataLoader(data, batch_size=8))
    return module
