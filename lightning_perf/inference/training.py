"""Train students on the outputs of a teacher, and changed models on real data, with Lightning."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, cos, inf, pi
from typing import TYPE_CHECKING, Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lightning_perf.inference.errors import InferenceError, VariantError

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
else:
    try:
        from lightning.pytorch import LightningDataModule, LightningModule, Trainer
    except ImportError:
        from pytorch_lightning import LightningDataModule, LightningModule, Trainer


WORSE = 1.1
"""A training diverged if its final loss is above this many times its first loss, and above as many times the loss of
the best constant answer. Noise between batches stays below it."""

JUMP = 1.5
"""A training also diverged if one loss was above this many times both, and the final loss is no better than the loss of
the best constant answer."""


def distillation_loss(
    student: Tensor, teacher: Tensor, labels: Tensor, temperature: float = 2.0, alpha: float = 0.5
) -> Tensor:
    """Return the loss of a student on a teacher's soft labels and on the true labels.

    ``alpha · T² · KL(softmax(teacher / T) ‖ softmax(student / T)) + (1 − alpha) · CE(student, labels)``, averaged over
    the batch (Hinton, Vinyals, Dean, arXiv:1503.02531, section 2). T² keeps the gradients of the two terms comparable
    if the temperature changes.

    Args:
        teacher: Logits, ``(n, classes)``; no gradient flows into them.
        temperature: T, above 0. The higher it is, the softer are the labels.
    """
    soft = functional.kl_div(
        functional.log_softmax(student / temperature, dim=1),
        functional.log_softmax(teacher.detach() / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    return alpha * temperature**2 * soft + (1 - alpha) * functional.cross_entropy(student, labels)


class Distillation(LightningModule):
    """Trains a student on a teacher's soft labels and the true labels, or on the true labels alone.

    Batches are ``(inputs, labels)`` as the student takes them. The teacher stays in eval mode, follows the student to
    its device, and learns nothing. Checkpoints and the ``state_dict`` hold the student only. The module logs
    ``train/loss``, ``train/accuracy``, and with validation data ``val/loss`` and ``val/accuracy``. It is a module of
    ``lightning.pytorch``, or of ``pytorch_lightning`` if only that is installed.

    Three defaults keep the training stable. The learning rate of a distilled student is ``lr / (alpha · T + 1 −
    alpha)``: the soft loss has a gradient of up to T times that of cross-entropy. The rate warms up linearly. Gradients
    are clipped, unless you set ``Trainer(gradient_clip_val=…)``, which takes precedence. After the fit, `divergence`
    says whether the training diverged.

    Args:
        student: The model to train, from inputs to logits ``(n, classes)``.
        teacher: A trained model for the same inputs and classes; the module keeps a copy. Without a teacher, the loss
            is cross-entropy on the labels.
        temperature: As in `distillation_loss`.
        alpha: As in `distillation_loss`.
        lr: Highest learning rate of SGD with Nesterov momentum 0.9. It falls to 0 along a cosine by the last step.
        weight_decay: L2 penalty.
        warm_up: Share of the steps in which the rate rises linearly, from 0 to below 1.
        max_gradient_norm: Longest gradient, over all weights together; None clips nothing.

    Raises:
        InferenceError: A setting is out of range.

    Example:
        >>> distillation = Distillation(nn.Linear(4, 3), teacher=nn.Linear(4, 3), temperature=2.0)
        >>> sorted(distillation.state_dict())
        ['student.bias', 'student.weight']
        >>> distillation.peak_lr  # 0.01 / (0.5 * 2 + 0.5)
        0.006666666666666667
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module | None = None,
        *,
        temperature: float = 2.0,
        alpha: float = 0.5,
        lr: float = 0.01,
        weight_decay: float = 5e-4,
        warm_up: float = 0.1,
        max_gradient_norm: float | None = 5.0,
    ) -> None:
        super().__init__()
        for is_valid, problem in (
            (0 < temperature < inf, f"The temperature must be above 0, got {temperature}. Common values are 1 to 10."),
            (0 <= alpha <= 1, f"alpha, the weight of the soft labels, must be from 0 to 1, got {alpha}."),
            (0 < lr < inf, f"The learning rate must be above 0, got {lr}."),
            (0 <= weight_decay < inf, f"The weight decay must be 0 or more, got {weight_decay}."),
            (
                0 <= warm_up < 1,
                f"warm_up, the share of steps in which the rate rises, must be in [0, 1), got {warm_up}.",
            ),
            (
                max_gradient_norm is None or max_gradient_norm > 0,
                f"max_gradient_norm must be above 0, or None for no clipping, got {max_gradient_norm}.",
            ),
        ):
            if not is_valid:
                raise InferenceError(problem)
        self.student = student
        self.temperature, self.alpha, self.lr, self.weight_decay = temperature, alpha, lr, weight_decay
        self.warm_up, self.max_gradient_norm = warm_up, max_gradient_norm
        # In a tuple the teacher is not a submodule: not trained, not saved, not switched to training mode.
        self._teacher = () if teacher is None else (copy.deepcopy(teacher).eval().requires_grad_(False),)
        self.divergence: str | None = None
        """How the last fit diverged; None if it did not."""
        self._observed = ObservedLosses()

    @property
    def peak_lr(self) -> float:
        """The learning rate after warm-up."""
        return self.lr if self.teacher is None else self.lr / (self.alpha * self.temperature + 1 - self.alpha)

    @property
    def teacher(self) -> nn.Module | None:
        """The copy of the teacher that the student learns from; None without a teacher."""
        return self._teacher[0] if self._teacher else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the student's logits, ``(n, classes)``."""
        logits: Tensor = self.student(inputs)
        return logits

    def on_fit_start(self) -> None:
        """Move the teacher to the device, because Lightning does not know about it."""
        if self.teacher is not None:
            self.teacher.to(self.device)
        self.divergence = None
        self._observed = ObservedLosses()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
        """Return the loss of a batch."""
        inputs, labels = batch
        soft = self._soft_labels(inputs)
        logits = self(inputs)
        loss = self._loss(logits, soft, labels)
        self._observed.add(loss.detach(), logits.detach(), self._targets(soft, labels, logits.shape[1]))
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/accuracy", _accuracy(logits, labels))
        return loss

    def on_train_epoch_end(self) -> None:
        """Stop after an epoch that ended with a loss of NaN or infinity."""
        if not self._observed.is_finite():
            self.trainer.should_stop = True

    def on_train_end(self) -> None:
        """Set `divergence`, and warn about it."""
        self.divergence = self._observed.divergence()
        if self.divergence is not None:
            warnings.warn(
                f"The training diverged: {self.divergence}. Lower lr, or use a student with batch norm.", stacklevel=2
            )

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:  # noqa: ARG002
        """Log cross-entropy and accuracy on the labels."""
        inputs, labels = batch
        logits = self(inputs)
        self.log("val/loss", functional.cross_entropy(logits, labels), batch_size=len(labels), sync_dist=True)
        self.log("val/accuracy", _accuracy(logits, labels), batch_size=len(labels), prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return SGD with Nesterov momentum; its rate warms up, then falls along a cosine."""
        trainable = [parameter for parameter in self.student.parameters() if parameter.requires_grad]
        optimizer = SGD(trainable, lr=self.peak_lr, momentum=0.9, nesterov=True, weight_decay=self.weight_decay)
        steps = max(1, int(self.trainer.estimated_stepping_batches))
        warm_up = ceil(self.warm_up * steps)
        scheduler = LambdaLR(optimizer, lambda step: _share_of_peak(step, warm_up, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip gradients to `max_gradient_norm`, unless the Trainer has a limit of its own."""
        if gradient_clip_val is None and self.max_gradient_norm is not None:
            gradient_clip_val, gradient_clip_algorithm = self.max_gradient_norm, "norm"
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    @torch.no_grad()
    def _soft_labels(self, inputs: Tensor) -> Tensor | None:
        """Return the teacher's logits. The teacher gets a copy of the inputs, in case it changes them in place."""
        return None if self.teacher is None else self.teacher(inputs.clone())

    @torch.no_grad()
    def _targets(self, soft: Tensor | None, labels: Tensor, classes: int) -> Sequence[tuple[float, Tensor]]:
        """Return the target distributions of the two terms of the loss, ``(n, classes)``, with their weights."""
        alpha = 0.0 if soft is None else self.alpha
        targets = [(1 - alpha, functional.one_hot(labels, classes).float())]
        if soft is not None:
            targets.append((alpha * self.temperature**2, functional.softmax(soft.float() / self.temperature, dim=1)))
        return targets

    def _loss(self, logits: Tensor, soft: Tensor | None, labels: Tensor) -> Tensor:
        if soft is None:
            return functional.cross_entropy(logits, labels)
        if soft.shape != logits.shape:
            raise InferenceError(
                f"The teacher returns {tuple(soft.shape)} and the student {tuple(logits.shape)}. "
                "Give both the same number of classes."
            )
        return distillation_loss(logits, soft, labels, self.temperature, self.alpha)


class ObservedLosses:
    """The losses of a training, and the loss that the best constant answer would have."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._logits = torch.zeros(0, 1)
        self._terms: list[tuple[float, Tensor, Tensor]] = []
        self._inputs = 0

    def add(self, loss: Tensor, logits: Tensor, targets: Sequence[tuple[float, Tensor]]) -> None:
        """Note the loss and the logits of a batch, and its targets with their weights."""
        self._losses.append(loss)
        self._logits = logits
        terms = [(weight, target.sum(0), torch.special.entr(target).sum()) for weight, target in targets]
        if self._terms:
            terms = [
                (weight, total + more, entropy + more_entropy)
                for (weight, total, entropy), (_, more, more_entropy) in zip(self._terms, terms, strict=True)
            ]
        self._terms = terms
        self._inputs += len(logits)

    def is_finite(self) -> bool:
        """Say whether the last loss is finite."""
        return not self._losses or bool(torch.isfinite(self._losses[-1]))

    def divergence(self) -> str | None:
        """Return how the training diverged, or None."""
        if not self._losses:
            return None
        losses = torch.stack(self._losses).float().cpu()
        wrong = torch.nonzero(~torch.isfinite(losses)).flatten().tolist()
        if wrong:
            return f"the loss became NaN or infinite at step {wrong[0] + 1} of {len(losses)}"
        if len(self._logits) > 1 and bool((self._logits == self._logits[0]).all()):
            return "the student gives the same answer for every input"
        first, last = float(losses[0]), float(losses[-max(1, len(losses) // 10) :].mean())
        constant = self._constant_loss()
        highest = max(first, constant)
        if last > WORSE * highest:
            return f"the loss rose from {first:.3g} to {last:.3g}; a constant answer has {constant:.3g}"
        if float(losses.max()) > JUMP * highest and last >= constant:
            jump = f"the loss jumped from {first:.3g} to {float(losses.max()):.3g}"
            return f"{jump} and ended at {last:.3g}; a constant answer has {constant:.3g}"
        return None

    def _constant_loss(self) -> float:
        """Return a lower bound of the loss of an answer that is the same for every input."""
        return sum(
            weight * float(torch.special.entr(total / self._inputs).sum() - entropy / self._inputs)
            for weight, total, entropy in self._terms
        )


def _accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(dim=1) == labels).float().mean()


def _share_of_peak(step: int, warm_up: int, steps: int) -> float:
    """Return the learning rate of a step, counted from 0, as a share of the highest."""
    if step < warm_up:
        return (step + 1) / warm_up
    return (1 + cos(pi * min(1.0, (step - warm_up) / max(1, steps - warm_up)))) / 2


TEMPERATURES = (1.0, 2.0, 4.0)
"""Temperatures that `FineTuner.choose_temperature` tries. Hinton et al. used 2 to 20; low ones suit small students."""


class FineTuner(Struct, frozen=True):
    """Trains changed models on real training data: ``FineTuner(loader)(module, teacher)`` returns the trained model.

    It trains with Lightning and `Distillation`: SGD with Nesterov momentum, a warm-up, and a rate that falls along a
    cosine. The seed is fixed, so each variant sees the same batches. It writes no logs and no checkpoints, and restores
    the state of the random number generators.

    Attributes:
        data: Training batches ``(inputs, labels)``: a ``DataLoader``, another iterable with a length, or a
            ``LightningDataModule``.
        epochs: Passes over the data.
        lr: Highest learning rate; `Distillation` lowers it for distilled students.
        weight_decay: L2 penalty.
        temperature: Temperature for distillation; see `choose_temperature`.
        alpha: Weight of the soft labels for distillation.
        device: The device to train on.
        seed: Seed for shuffling and dropout.
        progress: Whether to show a progress bar.
    """

    data: Any
    epochs: int = 1
    lr: float = 0.01
    weight_decay: float = 5e-4
    temperature: float = 2.0
    alpha: float = 0.5
    device: torch.device | str = "cpu"
    seed: int = 0
    progress: bool = False

    def __call__(self, module: nn.Module, teacher: nn.Module | None) -> nn.Module:
        """Train a model in place.

        Args:
            module: The model.
            teacher: A model to distil from, which stays unchanged; None to train on the labels alone.

        Returns:
            The model, in eval mode on the CPU.

        Raises:
            VariantError: The training fails or diverges.
        """
        training = Distillation(
            module,
            teacher,
            temperature=self.temperature,
            alpha=self.alpha,
            lr=self.lr,
            weight_decay=self.weight_decay,
        )
        module.train()  # Lightning keeps the mode of each layer as it finds it
        with _quietly(), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            try:
                self._fit(training)
            except Exception as error:
                raise VariantError(f"fine-tuning failed ({type(error).__name__}: {error})") from error
        module = module.cpu().eval()
        if training.divergence is not None:
            raise VariantError(
                f"its training diverged at a learning rate of {training.peak_lr:.3g}: {training.divergence}"
            )
        if not all(torch.isfinite(parameter).all() for parameter in module.parameters()):
            raise VariantError(
                f"its training at a learning rate of {training.peak_lr:.3g} left NaN or infinite weights"
            )
        return module

    def choose_temperature(
        self,
        module: nn.Module,
        teacher: nn.Module,
        held_out: Iterable[tuple[Tensor, Tensor]],
        temperatures: Sequence[float] = TEMPERATURES,
    ) -> float:
        """Return the temperature that gives the most accurate student on held-out data.

        Each temperature trains a copy of the student on `data`. Hold the data out from the training data, not from the
        data that you judge the final model on.

        Args:
            module: The untrained student, which stays unchanged.
            teacher: The model to distil from.
            held_out: Batches ``(inputs, labels)``.
            temperatures: Temperatures to try.

        Raises:
            VariantError: The training fails or diverges at every temperature.
        """
        scores: list[tuple[float, float, float]] = []
        problem: VariantError | None = None
        batches = list(held_out)
        for temperature in temperatures:
            try:
                student = replace(self, temperature=temperature)(copy.deepcopy(module), teacher)
            except VariantError as error:
                problem = error
                continue
            scores.append((*_score(student, batches), temperature))
        if not scores:
            assert problem is not None
            raise problem
        return max(scores)[-1]

    def _fit(self, training: Distillation) -> None:
        device = torch.device(self.device)
        trainer = Trainer(
            max_epochs=self.epochs,
            accelerator=device.type,
            devices=1 if device.index is None else [device.index],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=self.progress,
            limit_val_batches=0,
            num_sanity_val_steps=0,
        )
        if isinstance(self.data, LightningDataModule):
            trainer.fit(training, datamodule=self.data)
        else:
            trainer.fit(training, train_dataloaders=self.data)


@torch.inference_mode()
def _score(module: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return the accuracy of a model, and its negative cross-entropy, which decides between equal accuracies."""
    outputs = [(module(inputs.clone()), labels) for inputs, labels in batches]
    logits, labels = torch.cat([logits for logits, _ in outputs]), torch.cat([labels for _, labels in outputs])
    return float((logits.argmax(1) == labels).float().mean()), -float(functional.cross_entropy(logits, labels))


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence Lightning's messages and warnings: its advice is for the user's own trainings."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "pytorch_lightning")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
