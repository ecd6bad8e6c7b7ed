"""The LightningModule: next-token cross-entropy of a GPT."""

from __future__ import annotations

from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from recipes.tinylm.data import IGNORED, Batch
from recipes.tinylm.model import GPT

WEIGHT_DECAY = 0.1


class LanguageModule(LightningModule):
    """A language model.

    Args:
        network: The network.
        lr: Learning rate.
    """

    def __init__(self, network: GPT, lr: float = 2e-3) -> None:
        super().__init__()
        self.network = network
        self.lr = lr

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token, ``(batch, time, vocabulary)``."""
        logits: Tensor = self.network(tokens)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:  # noqa: ARG002
        """Return the loss in nats per token, and log it."""
        loss = self._loss(batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["input_ids"]))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        """Log the loss on held-out documents, averaged over their tokens."""
        tokens = int((batch["labels"] != IGNORED).sum())
        self.log("val/loss", self._loss(batch), prog_bar=True, batch_size=tokens)

    def configure_optimizers(self) -> Optimizer:
        """Return AdamW with weight decay on matrices only, not on biases and the parameters of norms."""
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
        return AdamW(groups, lr=self.lr, betas=(0.9, 0.95))

    def _loss(self, batch: Batch) -> Tensor:
        logits = self(batch["input_ids"])
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)
