"""The LightningModule: cross-entropy of a network on grey pictures."""

from __future__ import annotations

from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD, Optimizer

from recipes.signlang.training.model import build_model


class SignModule(LightningModule):
    """A classifier of signs.

    It takes pictures as bytes, ``(n, 1, size, size)`` of uint8, and scales them to 0…1 on the device. That moves a
    quarter of the data of float32 to the device.

    Args:
        model: A key of `recipes.signlang.training.model.MODELS`.
        classes: The labels, in the order of the outputs.
        image_size: Width and height of the pictures in pixels.
        lr: Learning rate.
    """

    def __init__(self, model: str, classes: tuple[str, ...], image_size: int, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = build_model(model, len(classes), image_size)
        self.lr = lr

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, ``(n, classes)``."""
        logits: Tensor = self.network(images / 255)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
        """Return the loss of a batch, and log it."""
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:  # noqa: ARG002
        """Log loss and accuracy on the held-out pictures, averaged over the epoch."""
        images, labels = batch
        logits = self(images)
        accuracy = (logits.argmax(dim=1) == labels).float().mean()
        self.log("val/loss", functional.cross_entropy(logits, labels), batch_size=len(labels), sync_dist=True)
        self.log("val/accuracy", accuracy, batch_size=len(labels), prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> Optimizer:
        """Return the article's optimizer: SGD with Nesterov momentum 0.9."""
        return SGD(self.parameters(), lr=self.lr, momentum=0.9, nesterov=True)
