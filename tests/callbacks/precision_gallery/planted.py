"""Small trainings with one planted mistake each, and the same trainings with the fix that the mistake's page gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from lightning_perf.callbacks.precision_callback import PrecisionCallback
from tests.callbacks.precision_training import stock_options


class Net(pl.LightningModule):
    """A classifier that trains well in any precision. Planted modules override one method each."""

    def __init__(self, *, fixed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fixed = fixed
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.losses: list[float] = []
        self.build()

    def build(self) -> None:
        """What a planted module has more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if isinstance(outputs, dict) and "loss" in outputs:
            self.losses.append(float(outputs["loss"]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class Manual(Net):
    def build(self) -> None:
        self.automatic_optimization = False

    def backward_and_step(self, loss: torch.Tensor, optimizer: Any) -> None:
        self.manual_backward(loss)
        optimizer.step()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(float(loss.detach()))
        self.backward_and_step(loss, optimizer)


class ClipsScaled(Manual):
    def backward_and_step(self, loss: torch.Tensor, optimizer: Any) -> None:
        self.manual_backward(loss)
        if not self.fixed:
            clip_grad_norm_(self.parameters(), 1.0)  # the mistake
        optimizer.step()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.fixed:
            clip_grad_norm_(self.parameters(), 1.0)


class ClipsScaledValues(Net):
    """In automatic optimization, in a hook that runs before Lightning unscales."""

    def on_after_backward(self) -> None:
        if not self.fixed:
            clip_grad_value_(self.net[2].parameters(), 0.5)  # the mistake

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.fixed:
            clip_grad_value_(self.net[2].parameters(), 0.5)


class OwnScaler(Manual):
    """A plain torch loop moved into training_step, in a Trainer without a precision."""

    def build(self) -> None:
        super().build()
        self.own = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(float(loss.detach()))
        self.own.scale(loss).backward()
        self.clip(optimizer)
        self.own.step(optimizer)
        self.own.update()

    def clip(self, optimizer: Any) -> None:
        if self.fixed:
            self.own.unscale_(optimizer)
        clip_grad_norm_(self.parameters(), 1.0)


class UnscalesTwice(Manual):
    def backward_and_step(self, loss: torch.Tensor, optimizer: Any) -> None:
        self.manual_backward(loss)
        if not self.fixed:
            scaler: Any = self.trainer.scaler
            scaler.unscale_(optimizer.optimizer)  # the mistake
        optimizer.step()


class OwnUnscalesTwice(OwnScaler):
    def clip(self, optimizer: Any) -> None:
        self.own.unscale_(optimizer)
        if not self.fixed:
            self.own.unscale_(optimizer)  # the mistake
        clip_grad_norm_(self.parameters(), 1.0)


class SharedBackward(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        both: Any = self.optimizers()
        first, second = both
        for optimizer in (first, second):
            optimizer.zero_grad()
            if self.fixed or optimizer is first:
                loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
                self.losses.append(float(loss.detach()))
            if self.fixed:
                self.backward_and_step(loss, optimizer)
        if not self.fixed:
            self.manual_backward(loss)
            first.step()
            second.step()  # the mistake: the scale was updated in between

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[0].parameters(), 0.1), torch.optim.SGD(self.net[2].parameters(), 0.1)]


class OwnSharedBackward(OwnScaler):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        both: Any = self.optimizers(use_pl_optimizer=False)
        first, second = both
        first.zero_grad()
        second.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(float(loss.detach()))
        self.own.scale(loss).backward()
        self.own.step(first)
        if not self.fixed:
            self.own.update()  # the mistake
        self.own.step(second)
        self.own.update()

    configure_optimizers = SharedBackward.configure_optimizers


class UnscaledBackward(Manual):
    def backward_and_step(self, loss: torch.Tensor, optimizer: Any) -> None:
        if self.fixed:
            self.manual_backward(loss)
        else:
            loss.backward()  # the mistake
        optimizer.step()


class Scheduled(Net):
    """Its first scale is far too large, so that its first steps are skipped."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        self.executed = 0
        optimizer.register_step_post_hook(self.count)
        self.schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        return [optimizer], [{"scheduler": self.schedule, "interval": "step"}]

    def count(self, *_: Any) -> None:
        self.executed += 1


class HalfLoss(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        logits = self(batch[0])
        with torch.autocast("cpu", enabled=False):
            return nn.functional.cross_entropy(logits.float() if self.fixed else logits, batch[1])  # the mistake


class Attention(nn.Module):
    """Handwritten attention over the features."""

    def __init__(self, *, fixed: bool) -> None:
        super().__init__()
        self.fixed = fixed
        self.query = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x)
        if self.fixed:
            scores = scores.float()
        weights = scores.exp()  # the mistake
        return x * (weights / weights.sum(-1, keepdim=True)).to(x.dtype)


class HalfSoftmax(Net):
    def build(self) -> None:
        self.attention = Attention(fixed=self.fixed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.attention(x))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self(batch[0].to(self.net[0].weight.dtype)).float(), batch[1])


class HalfWeights(Net):
    def build(self) -> None:
        if not self.fixed:
            self.net[2].bfloat16()  # the mistake


class FloatLoss(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self(batch[0]).float(), batch[1])


class HalfNorm(FloatLoss):
    def build(self) -> None:
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net[2](self.norm(self.net[0](x)))


class Normalized(nn.Module):
    """Divides by a norm, with an epsilon against zeros."""

    def __init__(self, *, fixed: bool) -> None:
        super().__init__()
        self.fixed = fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fixed:
            return x / (x.float().pow(2).mean(-1, keepdim=True).sqrt() + 1e-8)
        return x / (x.pow(2).mean(-1, keepdim=True).sqrt().to(x.dtype) + 1e-8)  # the mistake


class Epsilon(Net):
    def build(self) -> None:
        self.net.insert(1, Normalized(fixed=self.fixed))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self(batch[0].half()).float(), batch[1])


class ClampEpsilon(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        features = self.net[0](batch[0])
        if self.fixed:
            features = features.float()
        return nn.functional.cross_entropy(
            self.net[2](nn.functional.normalize(features)).float(), batch[1]
        )  # the mistake: eps=1e-12


class OptimizerEpsilon(FloatLoss):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-3, eps=1e-4 if self.fixed else 1e-8)


class HalfCounts(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        mask = torch.ones(8, 4096, dtype=torch.bool)
        count = mask.sum() if self.fixed else mask.half().sum()  # the mistake
        return nn.functional.cross_entropy(self(batch[0]), batch[1]) * (count / count)


class HalfPositions(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        # The mistake: neighbours above 256 become the same position.
        positions = torch.arange(1024, dtype=torch.float32 if self.fixed else torch.bfloat16)
        return nn.functional.cross_entropy(self(batch[0] + positions[:8].float() / 1024), batch[1])


class Averaged(Net):
    """Keeps an EMA of its weights as a module."""

    def build(self) -> None:
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        if not self.fixed:
            self.average.half()  # the mistake

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        for mean, weight in zip(self.average.parameters(), self.net.parameters(), strict=True):
            mean.lerp_(weight.to(mean.dtype), 0.1)


class Shadow(pl.Callback):
    """Keeps an EMA as a dict of tensors."""

    def __init__(self, *, fixed: bool) -> None:
        self.dtype = torch.float32 if fixed else torch.bfloat16  # the mistake
        self.shadow: dict[str, torch.Tensor] = {}

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        self.shadow = {name: p.detach().to(self.dtype, copy=True) for name, p in module.named_parameters()}

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        for name, p in module.named_parameters():
            self.shadow[name] = self.shadow[name] * 0.9 + p.detach().to(self.dtype) * 0.1


class LogsInfinity(Net):
    """Its third batch overflows, and the scaler skips it."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        logits = self(batch[0])
        if batch_idx == 2:
            logits = (logits.half() * 60_000) * 60_000
        loss = nn.functional.cross_entropy(logits, batch[1])
        if not self.fixed or torch.isfinite(loss):
            self.log("loss", loss, on_step=False, on_epoch=True)  # the mistake
        return loss


class Masked(Net):
    """Attention over the features with a mask, in FP16."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        scores = self(batch[0])
        half = scores.half()
        constant = torch.finfo(half.dtype).min if self.fixed else -1e9
        half = half.masked_fill(batch[0][:, :4] > 2, constant)  # the mistake
        return nn.functional.cross_entropy(scores, batch[1]) + 0 * half.float().softmax(-1).sum()


class Filled(Net):
    """A bias for masked positions as a tensor of its own."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        scores = self(batch[0])
        half = scores.half()
        bias = torch.zeros_like(half)
        bias.masked_fill_(batch[0][:, :4] > 2, torch.finfo(half.dtype).min if self.fixed else -1e5)  # the mistake
        return nn.functional.cross_entropy(scores, batch[1]) + 0 * (half + bias).float().softmax(-1).sum()


class SmallUpdates(Net):
    """Trains BF16 weights with a small learning rate."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self(batch[0].to(self.dtype)).float(), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-4)


class StaleCache(Manual):
    """Two updates in one step, under an autocast of its own."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        for _ in range(2):
            optimizer.zero_grad()
            # The mistake: inside Lightning's autocast this one's cache lives until training_step ends.
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=not self.fixed):
                loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            self.backward_and_step(loss, optimizer)


class StripsScaler(Net):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if not self.fixed:
            checkpoint.pop("MixedPrecision", None)  # the mistake


class OwnScalerUnsaved(OwnScaler):
    def clip(self, optimizer: Any) -> None:
        """Does not clip."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.fixed:
            checkpoint["own_scaler"] = self.own.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.own.load_state_dict(checkpoint["own_scaler"])


@dataclass(frozen=True)
class Planted:
    """A planted mistake.

    Attributes:
        name: Its name in the tests.
        kind: The ID that must be found, and nothing else.
        make: Makes the module, with the mistake or with the fix.
        layer: The layer that must be named; empty if the place is a line.
        line: Whether a line of this file must be named.
        precision: The precision that the callback is given, unless the Trainer has one.
        trainer: The Trainer's precision.
        cured: The Trainer's precision with the fix, if that is another one.
        options: Further options of the Trainer, with the mistake or with the fix.
        settings: Further settings of the callback, with the mistake or with the fix.
        raises: Error of torch that the mistake ends in.
        checkpoint: Whether a checkpoint is saved during the fit.
    """

    name: str
    kind: str
    make: Callable[..., Any]
    layer: str = ""
    line: bool = False
    precision: Any = "16-mixed"
    trainer: str = ""
    cured: str = ""
    options: Callable[[bool], dict[str, Any]] = field(default=lambda fixed: {})
    settings: Callable[[bool], dict[str, Any]] = field(default=lambda fixed: {})
    raises: type[Exception] | None = None
    checkpoint: bool = False

    def callback(self, *, fixed: bool) -> PrecisionCallback:
        return PrecisionCallback(None if self.trainer else self.precision, **self.settings(fixed))

    def trainer_options(self, *, fixed: bool) -> dict[str, Any]:
        precision = self.cured if fixed and self.cured else self.trainer
        return {"max_epochs": 1, **({"precision": precision} if precision else {}), **self.options(fixed)}


PLANTED = (
    Planted("clip-norm", "clip-scaled-gradients", ClipsScaled, "net.0", line=True),
    Planted("clip-value", "clip-scaled-gradients", ClipsScaledValues, "net.2", line=True),
    Planted("own-scaler", "unscale-missing", OwnScaler, "net.0", line=True, precision=None),
    Planted("unscale-twice", "unscale-twice", UnscalesTwice, "net.0", line=True, raises=RuntimeError),
    Planted(
        "own-unscale-twice", "unscale-twice", OwnUnscalesTwice, "net.0", line=True, precision=None, raises=RuntimeError
    ),
    Planted("shared-backward", "shared-backward", SharedBackward, "net.2", line=True),
    Planted("own-shared-backward", "shared-backward", OwnSharedBackward, "net.2", line=True, precision=None),
    Planted("raw-backward", "backward-without-scale", UnscaledBackward, "net.0", line=True, raises=AssertionError),
    Planted(
        "schedule",
        "scheduler-on-skips",
        Scheduled,
        settings=lambda fixed: {"init_scale": 2.0**10 if fixed else 2.0**38},
        options=lambda fixed: {"max_epochs": 4},
    ),
    Planted("loss", "half-loss", HalfLoss, line=True),
    Planted("softmax", "half-loss", HalfSoftmax, "attention", line=True, trainer="16-true"),
    Planted("weights", "half-weights", HalfWeights, "net.2", trainer="bf16-mixed"),
    Planted("batch-norm", "half-batch-norm", HalfNorm, "norm", trainer="16-true", cured="bf16-mixed"),
    Planted("epsilon", "epsilon-underflow", Epsilon, "net.1", line=True),
    Planted("clamp-epsilon", "epsilon-underflow", ClampEpsilon, line=True),
    Planted("adam-epsilon", "epsilon-underflow", OptimizerEpsilon, "net.0", trainer="16-true"),
    Planted("counts", "half-counts", HalfCounts, line=True),
    Planted("positions", "half-counts", HalfPositions, line=True, precision="bf16-mixed"),
    Planted(
        "accumulation",
        "half-accumulation",
        Net,
        "net.0",
        trainer="bf16-true",
        cured="bf16-mixed",
        options=lambda fixed: {"accumulate_grad_batches": 2},
    ),
    Planted("ema-module", "half-averages", Averaged, "average.0.weight"),
    Planted(
        "ema-callback",
        "half-averages",
        Net,
        "Shadow.shadow['net.0.weight']",
        trainer="bf16-mixed",
        options=lambda fixed: {"callbacks": [Shadow(fixed=fixed)]},
    ),
    Planted("masked-fill", "half-constant", Masked, line=True, raises=RuntimeError),
    Planted("filled-bias", "half-constant", Filled, line=True, raises=RuntimeError),
    Planted(
        "small-updates",
        "lost-updates",
        SmallUpdates,
        trainer="bf16-true",
        cured="bf16-mixed",
        options=lambda fixed: {"max_epochs": 3},
    ),
    Planted("logged-overflow", "logged-infinity", LogsInfinity, line=True),
    Planted("stale-cache", "stale-autocast-cache", StaleCache, "net.0", trainer="bf16-mixed"),
    Planted("stripped-checkpoint", "checkpoint-without-scaler", StripsScaler, checkpoint=True),
    Planted("own-checkpoint", "checkpoint-without-scaler", OwnScalerUnsaved, precision=None, checkpoint=True),
    Planted(
        "stock-plugin",
        "clip-scaled-gradients",
        ClipsScaled,
        "net.0",
        line=True,
        precision=None,
        options=lambda fixed: stock_options("16-mixed"),
    ),
)
