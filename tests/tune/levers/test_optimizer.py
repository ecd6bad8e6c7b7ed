import copy
import sys

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader

from lightning_perf.tune.errors import NotApplicableError
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.model import MixedPrecision
from lightning_perf.tune.levers.optimizer import FusedOptimizer
from lightning_perf.tune.trainers.fit import LightningTrainer
from lightning_perf.tune.training import Training
from tests.tune.trainings import TRAINER, Pictures, Tiny, lines

CPU = Machine("cpu", None, 2, "a CPU")
LEVER = FusedOptimizer()

MAKERS = {
    "sgd": lambda p, **more: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, **more),
    "adagrad": lambda p, **more: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, **more),
    "adam": lambda p, **more: torch.optim.Adam(p, lr=0.1, amsgrad=True, **more),
    "adamw": lambda p, **more: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2, **more),
}


@pytest.mark.parametrize(("kind", "foreach"), [*((kind, None) for kind in MAKERS), ("adam", True), ("sgd", False)])
def test_fusing_in_place_is_what_the_constructor_makes(kind, foreach):
    torch.manual_seed(0)
    ours = nn.Linear(4, 3)
    theirs = copy.deepcopy(ours)
    fused = MAKERS[kind](ours.parameters(), foreach=foreach)
    training = Training(Tiny())
    training.module.configure_optimizers = lambda: fused
    LEVER.apply(training)
    assert training.module.configure_optimizers() is fused
    built = MAKERS[kind](theirs.parameters(), fused=True, foreach=None if foreach else foreach)
    assert fused.state_dict()["param_groups"] == built.state_dict()["param_groups"]
    assert fused.defaults == built.defaults
    inputs = torch.randn(8, 4)
    for _ in range(5):
        for model, optimizer in ((ours, fused), (theirs, built)):
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
    for mine, other in zip(fused.state.values(), built.state.values(), strict=True):
        assert mine.keys() == other.keys()
        assert all(
            torch.equal(mine[key], other[key]) and mine[key].dtype == other[key].dtype
            for key in mine
            if isinstance(mine[key], torch.Tensor)
        )


class WithoutOptimizer(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 3)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).sum()


@pytest.mark.filterwarnings("ignore")
def test_optimizers_of_lightning_cli_are_fused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--optimizer=Adam", "--trainer.accelerator=cpu"])
    cli = LightningCLI(WithoutOptimizer, run=False, save_config_callback=None)
    training = Training(cli.model, DataLoader(Pictures(), batch_size=4), TRAINER)
    LEVER.apply(training)
    LightningTrainer(training).fit(None, str(tmp_path), max_steps=1)
    assert cli.model.optimizers().defaults["fused"]


@pytest.mark.parametrize("form", ["one", "list", "dict", "pair", "dicts"])
def test_every_form_of_configure_optimizers_is_fused(form):
    module = Tiny()
    optimizer = torch.optim.Adam(module.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    given = {
        "one": optimizer,
        "list": [optimizer],
        "dict": {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}},
        "pair": ([optimizer], [{"scheduler": schedule}]),
        "dicts": ({"optimizer": optimizer, "lr_scheduler": schedule},),
    }[form]
    module.configure_optimizers = lambda: given
    training = Training(module)
    assert LEVER.missing(training, CPU) is None
    assert lines(LEVER, training) == ("torch.optim.Adam(…, fused=True)  # in configure_optimizers",)
    LEVER.apply(training)
    assert training.module.configure_optimizers() is given
    assert [group["fused"] for group in optimizer.param_groups] == [True]
    assert schedule.optimizer is optimizer


def test_what_has_no_fused_form_is_told():
    module = Tiny("RMSprop")
    assert LEVER.missing(Training(module), CPU) == "RMSprop has no fused form"
    module.configure_optimizers = lambda: None
    assert LEVER.missing(Training(module), CPU) == "the module has no optimizer"
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), fused=True)
    assert LEVER.missing(Training(module), CPU) == "is fused already"
    assert "CUDA" in LEVER.missing(Training(Tiny()), Machine("mps", None, 2, "a GPU"))
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), differentiable=True)
    assert "differentiable" in LEVER.missing(Training(module), CPU)


def test_optimizers_that_need_their_trainer_are_judged_when_it_is_there():
    class NeedsTrainer(Tiny):
        def configure_optimizers(self):
            assert self.trainer.estimated_stepping_batches
            return torch.optim.RMSprop(self.parameters())

    training = Training(NeedsTrainer())
    assert LEVER.missing(training, CPU) is None
    assert lines(LEVER, training) == ("torch.optim.…(…, fused=True)  # in configure_optimizers",)
    LEVER.apply(training)
    training.module._fabric = None
    training.module.trainer = type("Running", (), {"estimated_stepping_batches": 7})()
    with pytest.raises(NotApplicableError, match="RMSprop has no fused form"):
        training.module.configure_optimizers()


def clipping(precision, clip=1.0, module=None):
    return Training(module or Tiny("Adam"), None, {"precision": precision, "gradient_clip_val": clip})


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16", "16-mixed", 16])
def test_clipping_in_mixed_precision_excludes_fusing(precision):
    """Lightning raises in the first step."""
    assert "clip" in str(LEVER.missing(clipping(precision), CPU))
    assert LEVER.missing(clipping(precision, None), CPU) is None
    late = clipping(None)
    assert LEVER.missing(late, CPU) is None
    late.trainer["precision"] = precision  # a lever that was kept before
    LEVER.apply(late)
    with pytest.raises(NotApplicableError, match="clip"):
        late.module.configure_optimizers()


def test_clipping_in_fp32_or_in_the_module_does_not():
    assert LEVER.missing(clipping("32-true"), CPU) is None

    class Own(Tiny):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)

    assert LEVER.missing(clipping("bf16-mixed", module=Own("Adam")), CPU) is None
    # Under 16-mixed such a method would clip gradients that are still scaled.
    assert LEVER.missing(clipping("16-mixed", module=Own("Adam")), CPU) is not None


def test_mixed_precision_is_not_tried_on_a_fused_optimizer_with_clipping():
    class Fused(Tiny):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), fused=True)

    lever = MixedPrecision("bf16-mixed")
    assert "fused" in str(lever.missing(clipping(None, module=Fused()), CPU))
    assert lever.missing(clipping(None, None, Fused()), CPU) is None
    assert lever.missing(clipping(None), CPU) is None
