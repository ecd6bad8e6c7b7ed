"""`Distillation`: a Lightning module that trains any student on any teacher's outputs and on the labels."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from lightning_perf.inference.errors import InferenceError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule
    from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
else:
    try:
        from lightning.pytorch import LightningModule
    except ImportError:
        from pytorch_lightning import LightningModule

__all__ = ["Distillation", "distillation_loss"]


def distillation_loss(
    student: Tensor, teacher: Tensor, labels: Tensor, temperature: float = 4.0, alpha: float = 0.5
) -> Tensor:
    """Loss of a student on a teacher's soft labels and on the true ones.

    ``alpha · T² · KL(softmax(teacher / T) ‖ softmax(student / T)) + (1 − alpha) · CE(student, labels)``, averaged over
    the batch (Hinton, Vinyals, Dean, arXiv:1503.02531, section 2; T² keeps the two gradients comparable when the
    temperature changes).

    Args:
        student: Logits ``(n, classes)``.
        teacher: Logits ``(n, classes)``; no gradient flows to them.
        labels: Class of each input, ``(n,)``, int64.
        temperature: T, above 0: the higher, the softer the labels.
        alpha: Weight of the soft labels, 0…1.

    Returns:
        A number.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> labels = torch.tensor([0])
        >>> float(distillation_loss(logits, logits, labels, alpha=1.0))
        0.0
        >>> hard = distillation_loss(logits, -logits, labels, alpha=0.0)
        >>> bool(hard == functional.cross_entropy(logits, labels))
        True
    """
    soft = functional.kl_div(
        functional.log_softmax(student / temperature, dim=1),
        functional.log_softmax(teacher.detach() / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    return alpha * temperature**2 * soft + (1 - alpha) * functional.cross_entropy(student, labels)


class Distillation(LightningModule):
    """Trains a student, on a teacher's soft labels and the true ones, or without a teacher on the true ones alone.

    Batches are ``(inputs, labels)`` as the student takes them. The teacher is in eval mode whatever the Trainer does,
    learns nothing, follows to the device, and is in no checkpoint and no ``state_dict``: those are the student's.
    Logs ``train/loss``, ``train/accuracy``, and for validation data ``val/loss`` and ``val/accuracy``. A module of
    ``lightning.pytorch``, or of ``pytorch_lightning`` where only that is installed.

    Args:
        student: The model to train, from inputs to logits ``(n, classes)``.
        teacher: A trained model of the same inputs and classes, of which a copy is kept; None for cross-entropy on the
            labels.
        temperature: As in `distillation_loss`.
        alpha: As in `distillation_loss`.
        lr: Highest learning rate of SGD with Nesterov momentum of 0.9; it falls to 0 along a cosine by the last step.
        weight_decay: L2 penalty.

    Raises:
        InferenceError: A setting is out of range.

    Example:
        >>> distillation = Distillation(nn.Linear(4, 3), teacher=nn.Linear(4, 3), temperature=2.0)
        >>> sorted(distillation.state_dict())
        ['student.bias', 'student.weight']
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module | None = None,
        *,
        temperature: float = 4.0,
        alpha: float = 0.5,
        lr: float = 0.01,
        weight_decay: float = 5e-4,
    ) -> None:
        super().__init__()
        _check(temperature, alpha, lr, weight_decay)
        self.student = student
        self.temperature, self.alpha, self.lr, self.weight_decay = temperature, alpha, lr, weight_decay
        # In a tuple it is no sub-module: not trained, not in the state, not switched to training mode.
        self._teacher = () if teacher is None else (copy.deepcopy(teacher).eval().requires_grad_(False),)

    @property
    def teacher(self) -> nn.Module | None:
        """The copy that the student learns from."""
        return self._teacher[0] if self._teacher else None

    def forward(self, inputs: Tensor) -> Tensor:
        """The student's logits, ``(n, classes)``."""
        logits: Tensor = self.student(inputs)
        return logits

    def on_fit_start(self) -> None:
        """Bring the teacher to the device: Lightning does not know of it."""
        if self.teacher is not None:
            self.teacher.to(self.device)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
        """Loss of a batch."""
        inputs, labels = batch
        soft = self._soft_labels(inputs)
        logits = self(inputs)
        loss = self._loss(logits, soft, labels)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/accuracy", _accuracy(logits, labels))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:  # noqa: ARG002
        """Cross-entropy and accuracy on the labels."""
        inputs, labels = batch
        logits = self(inputs)
        self.log("val/loss", functional.cross_entropy(logits, labels), batch_size=len(labels), sync_dist=True)
        self.log("val/accuracy", _accuracy(logits, labels), batch_size=len(labels), prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """SGD with Nesterov momentum, its rate falling along a cosine."""
        trainable = [parameter for parameter in self.student.parameters() if parameter.requires_grad]
        optimizer = SGD(trainable, lr=self.lr, momentum=0.9, nesterov=True, weight_decay=self.weight_decay)
        steps = max(1, int(self.trainer.estimated_stepping_batches))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": CosineAnnealingLR(optimizer, steps), "interval": "step"},
        }

    @torch.no_grad()
    def _soft_labels(self, inputs: Tensor) -> Tensor | None:
        """Of inputs of its own: a model may change them in place."""
        return None if self.teacher is None else self.teacher(inputs.clone())

    def _loss(self, logits: Tensor, soft: Tensor | None, labels: Tensor) -> Tensor:
        if soft is None:
            return functional.cross_entropy(logits, labels)
        if soft.shape != logits.shape:
            raise InferenceError(
                f"The teacher gives {tuple(soft.shape)} and the student {tuple(logits.shape)}: "
                "they must have the same classes."
            )
        return distillation_loss(logits, soft, labels, self.temperature, self.alpha)


def _accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(dim=1) == labels).float().mean()


def _check(temperature: float, alpha: float, lr: float, weight_decay: float) -> None:
    if not 0 < temperature < float("inf"):
        raise InferenceError(f"The temperature must be above 0, got {temperature}. Usual are 2 to 10.")
    if not 0 <= alpha <= 1:
        raise InferenceError(f"alpha, the weight of the soft labels, must be from 0 to 1, got {alpha}.")
    if not 0 < lr < float("inf"):
        raise InferenceError(f"The learning rate must be above 0, got {lr}.")
    if not 0 <= weight_decay < float("inf"):
        raise InferenceError(f"The weight decay must be 0 or more, got {weight_decay}.")
