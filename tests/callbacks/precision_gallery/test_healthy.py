"""Healthy trainings of many kinds: no mistake is named in any of them, and none is changed by the checks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf.callbacks.precision_callback import PrecisionCallback
from recipes.signlang.training.model import build_model
from tests.callbacks.precision_training import stock_options
from tests.callbacks.training import make_trainer

pytestmark = [pytest.mark.usefixtures("fp16_on_cpu"), pytest.mark.filterwarnings("ignore::UserWarning")]


def pictures(size: int = 32, channels: int = 3, count: int = 12, classes: int = 10) -> DataLoader:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, channels, size, size, generator=draw)
    return DataLoader(TensorDataset(inputs, torch.randint(0, classes, (count,), generator=draw)), 4)


def tokens(count: int = 16, length: int = 12, words: int = 50) -> DataLoader:
    draw = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randint(1, words, (count, length), generator=draw)), 4)


class Classifier(pl.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        logits = self.net(batch[0])
        loss = nn.functional.cross_entropy(logits.float(), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("accuracy", (logits.argmax(-1) == batch[1]).float().mean())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9), "interval": "step"},
        }


class LanguageModel(pl.LightningModule):
    """A causal transformer with a padding mask, tied weights and label smoothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (ids,) = batch
        positions = torch.arange(ids.shape[1] - 1)
        hidden = self.embedding(ids[:, :-1]) + (positions[:, None] / 100).sin()
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1] - 1)
        logits = self.head(self.body(hidden, mask=mask, is_causal=True))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)
        self.log_dict({"loss": loss, "perplexity": loss.exp()})
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-3)


class Recurrent(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 16, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, 50)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (ids,) = batch
        output, _ = self.rnn(self.embedding(ids[:, :-1]))
        return nn.functional.nll_loss(
            nn.functional.log_softmax(self.head(output).float(), -1).flatten(0, 1), ids[:, 1:].flatten()
        )

    def configure_optimizers(self) -> Any:
        return torch.optim.RMSprop(self.parameters(), 1e-3)


class Gan(pl.LightningModule):
    """Manual optimization done right: a backward pass before each step, and clipping after unscaling."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real = batch[0].flatten(1)[:, :8]
        both: Any = self.optimizers()
        for_generator, for_critic = both
        fake = self.generator(torch.randn(len(real), 4))
        for_critic.zero_grad()
        loss = (
            nn.functional.softplus(self.critic(fake.detach())).mean()
            + nn.functional.softplus(-self.critic(real)).mean()
        )
        self.manual_backward(loss)
        for_critic.step()
        for_generator.zero_grad()
        self.toggle_optimizer(for_generator)
        other = nn.functional.softplus(-self.critic(self.generator(torch.randn(len(real), 4)))).mean()
        self.manual_backward(other)
        for_generator.step()
        self.untoggle_optimizer(for_generator)
        schedules: Any = self.lr_schedulers()
        for schedule in schedules:
            schedule.step()
        self.log_dict({"critic": loss, "generator": other})

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)

    def configure_optimizers(self) -> Any:
        made = [torch.optim.Adam(net.parameters(), 1e-3, (0.5, 0.9)) for net in (self.generator, self.critic)]
        return made, [torch.optim.lr_scheduler.ExponentialLR(one, 0.99) for one in made]


class Distilled(Classifier):
    """A frozen teacher in half precision, and an EMA of the student in FP32."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.GELU(), nn.Linear(32, 10)))
        self.teacher = copy.deepcopy(self.net).bfloat16().requires_grad_(False).eval()
        self.average = torch.optim.swa_utils.AveragedModel(
            self.net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher(batch[0].bfloat16()).float().softmax(-1)
        logits = self.net(batch[0]).float()
        distance = nn.functional.kl_div(logits.log_softmax(-1), target, reduction="batchmean")
        return nn.functional.cross_entropy(logits, batch[1]) + distance

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.update_parameters(self.net)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), 0.01, momentum=0.9, nesterov=True)


class TrueHalf(pl.LightningModule):
    """Training in 16-true as it can be done: layer norm, the loss in FP32, and an epsilon that FP16 can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10))
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        hidden = self.net[:4](batch[0]).unsqueeze(0)
        mixed, _ = self.attention(hidden, hidden, hidden)
        loss = nn.functional.cross_entropy(self.net[4](mixed.squeeze(0)).float(), batch[1])
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-3, eps=1e-4)


class OwnLoop(pl.LightningModule):
    """A plain torch loop with its own scaler, in the right order, also for its checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))
        self.loss_scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1]) / 2
        self.loss_scaler.scale(loss).backward()
        if batch_idx % 2:
            self.loss_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)
            self.loss_scaler.step(optimizer)
            self.loss_scaler.update()
            optimizer.zero_grad()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["scaler"] = self.loss_scaler.state_dict()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def timm_net() -> Any:
    timm = pytest.importorskip("timm")
    return Classifier(timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=10))


def torchvision_net() -> Any:
    models = pytest.importorskip("torchvision.models")
    return Classifier(models.mobilenet_v3_small(num_classes=10))


def flat_net(**options: Any) -> Any:
    net: Any = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Linear(32, 10)
    )
    if options.get("compiled"):
        net = torch.compile(net, backend="aot_eager")
    return Classifier(net)


def small() -> DataLoader:
    return pictures(8)


class Recipe(Classifier):
    def __init__(self, name: str) -> None:
        super().__init__(build_model(name, 10, 64))


@dataclass(frozen=True)
class Healthy:
    """A healthy training.

    Attributes:
        name: Its name in the tests.
        make: Makes the module.
        data: Makes its data.
        options: Options of the Trainer.
        precision: The precision that the callback is given.
        keep_fp32: Layers to keep in FP32. CPUs have no LSTM in FP16.
    """

    name: str
    make: Callable[[], Any]
    data: Callable[[], DataLoader] = small
    options: dict[str, Any] = field(default_factory=dict)
    precision: Any = "16-mixed"
    keep_fp32: tuple[str, ...] = ()


HEALTHY = (
    Healthy("recipe-cnn", lambda: Recipe("cnn"), lambda: pictures(64, 1)),
    Healthy("recipe-resnet", lambda: Recipe("resnet18"), lambda: pictures(64, 1, count=8), precision="bf16-mixed"),
    Healthy("timm-vit", timm_net, pictures),
    Healthy("torchvision-mobilenet", torchvision_net, pictures, precision="bf16-mixed"),
    Healthy("transformer", LanguageModel, tokens),
    Healthy("transformer-bf16", LanguageModel, tokens, precision="bf16-mixed"),
    Healthy("lstm", Recurrent, tokens, keep_fp32=("rnn",)),
    Healthy("gan", Gan),
    Healthy("gan-bf16", Gan, precision="bf16-mixed"),
    Healthy("accumulation", flat_net, options={"accumulate_grad_batches": 3}),
    Healthy("clipping", flat_net, options={"gradient_clip_val": 1.0}),
    Healthy("clipping-values", flat_net, options={"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"}),
    Healthy("distilled-ema", Distilled),
    Healthy("swa", flat_net, options={"callbacks": [pl.callbacks.StochasticWeightAveraging(1e-2)], "max_epochs": 4}),
    Healthy("compiled", lambda: flat_net(compiled=True), precision="bf16-mixed"),
    Healthy("16-true", TrueHalf, options={"precision": "16-true"}, precision=None),
    Healthy("bf16-true", TrueHalf, options={"precision": "bf16-true"}, precision=None),
    Healthy("own-loop", OwnLoop, precision=None),
    Healthy("lightnings-own-fp16", flat_net, options=stock_options("16-mixed"), precision=None),
    Healthy("fp32", flat_net, precision=None),
)


@pytest.mark.parametrize("healthy", HEALTHY, ids=[one.name for one in HEALTHY])
def test_a_healthy_training_has_no_mistakes(tmp_path, healthy):
    torch.manual_seed(0)
    module = healthy.make()
    callback = PrecisionCallback(healthy.precision, keep_fp32=healthy.keep_fp32, dirpath=tmp_path / "perf")
    options = {"max_epochs": 2, **copy.deepcopy(healthy.options)}
    make_trainer(tmp_path, callback, **options).fit(module, healthy.data())
    assert callback.mistakes == ()


@pytest.mark.parametrize("fails", [False, True])
def test_the_checks_leave_nothing_behind(tmp_path, fails):
    before = (torch.amp.GradScaler.step, torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype)
    module = flat_net()
    if fails:
        module.training_step = lambda batch, batch_idx: 1 / 0
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        make_trainer(tmp_path, PrecisionCallback("16-mixed"), max_epochs=2).fit(module, small())
    assert before == (torch.amp.GradScaler.step, torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype)
    assert "log" not in vars(module)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
