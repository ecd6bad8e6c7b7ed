"""Networks for pictures."""

from __future__ import annotations

from typing import Any

from benchmarks.compatibility.session import Session, lightning_module


def lightly(session: Session) -> Any:
    """Train SimCLR on random pictures."""
    import lightning.pytorch as pl
    import torch
    import torchvision
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    pl.seed_everything(1)
    backbone = torch.nn.Sequential(*list(torchvision.models.resnet18().children())[:-1], torch.nn.Flatten())
    criterion = NTXentLoss()
    module = lightning_module(
        torch.nn.Sequential(backbone, SimCLRProjectionHead(512, 128, 32)),
        lambda net, views: criterion(*map(net, views)),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )
    pictures = torch.rand(2, 160, 3, 32, 32)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*pictures), batch_size=8)
    pl.Trainer(**session.trainer_options(max_epochs=2)).fit(module, loader)
    return module


def segmentation_models(session: Session) -> Any:
    """Train a U-Net on random masks."""
    import lightning.pytorch as pl
    import segmentation_models_pytorch as smp
    import torch

    pl.seed_everything(1)
    criterion = smp.losses.DiceLoss(smp.losses.BINARY_MODE)
    module = lightning_module(
        smp.Unet("resnet18", encoder_weights=None, classes=1),
        lambda net, batch: criterion(net(batch[0]), batch[1]),
        lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
    )
    data = torch.utils.data.TensorDataset(torch.rand(120, 3, 64, 64), torch.randint(0, 2, (120, 1, 64, 64)).float())
    trainer = pl.Trainer(**session.trainer_options(max_epochs=1))
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return module


def timm_classifier(session: Session) -> Any:
    """Train a small network of timm with accumulation and clipping."""
    import lightning.pytorch as pl
    import timm
    import torch

    def optimizers(parameters: Any) -> Any:
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)]

    pl.seed_everything(1)
    network = timm.create_model("mobilenetv3_small_050", pretrained=False, num_classes=10)
    module = lightning_module(
        network, lambda net, batch: torch.nn.functional.cross_entropy(net(batch[0]), batch[1]), optimizers
    )
    data = torch.utils.data.TensorDataset(torch.rand(320, 3, 64, 64), torch.randint(0, 10, (320,)))
    options = session.trainer_options(max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=1.0)
    pl.Trainer(**options).fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return module


def kornia(session: Session) -> Any:
    """Train a small network on pictures that kornia changes at random on the device."""
    import kornia.augmentation as augmentation
    import lightning.pytorch as pl
    import torch
    from torch import nn

    class Augmented(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
            self.head = nn.Linear(256, 10)
            self.augment = nn.Sequential(
                augmentation.RandomHorizontalFlip(p=0.5),
                augmentation.RandomAffine(degrees=15.0, p=0.5),
                augmentation.ColorJitter(0.2, 0.2, 0.2, 0.1, p=0.5),
            )

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
            return (self.augment(batch[0]), batch[1]) if self.trainer.training else batch

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
            loss = nn.functional.cross_entropy(self.head(self.net(batch[0])), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    pl.seed_everything(1)
    data = torch.utils.data.TensorDataset(torch.rand(480, 3, 48, 48), torch.randint(0, 10, (480,)))
    module = Augmented()
    trainer = pl.Trainer(**session.trainer_options(max_epochs=1))
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))
    return module


def torchgeo(session: Session) -> Any:
    """Train TorchGeo's segmentation task on random satellite pictures, with validation."""
    import lightning.pytorch as pl
    import torch
    from torchgeo.trainers import SemanticSegmentationTask

    class Scenes(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __init__(self, length: int) -> None:
            self.pictures = torch.rand(length, 4, 64, 64)
            self.masks = torch.randint(0, 3, (length, 64, 64))

        def __len__(self) -> int:
            return len(self.pictures)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"image": self.pictures[index], "mask": self.masks[index]}

    pl.seed_everything(1)
    task = SemanticSegmentationTask(model="unet", backbone="resnet18", weights=None, in_channels=4, num_classes=3)
    trainer = pl.Trainer(**session.trainer_options(max_epochs=2, limit_val_batches=2))
    training, validation = Scenes(120), Scenes(16)
    trainer.fit(
        task,
        torch.utils.data.DataLoader(training, batch_size=8, shuffle=True),
        torch.utils.data.DataLoader(validation, batch_size=8),
    )
    return task


def anomalib(session: Session) -> Any:
    """Train GANomaly, which has two optimizers, on a folder of pictures that this function draws."""
    import lightning.pytorch as pl
    import numpy as np
    from anomalib.data import Folder
    from anomalib.engine import Engine
    from anomalib.models import Ganomaly
    from PIL import Image

    pl.seed_everything(1)
    draw = np.random.default_rng(0)
    for name, count in (("good", 160), ("bad", 16)):
        folder = session.folder / "pictures" / name
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(draw.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    data = Folder(
        "drawn",
        root=session.folder / "pictures",
        normal_dir="good",
        abnormal_dir="bad",
        train_batch_size=4,
        eval_batch_size=4,
        num_workers=0,
        seed=1,
    )
    options = session.trainer_options("enable_checkpointing", max_epochs=2)
    model = Ganomaly(n_features=16, pre_processor=Ganomaly.configure_pre_processor((64, 64)), visualizer=False)
    Engine(**options).fit(model=model, datamodule=data)
    return model
