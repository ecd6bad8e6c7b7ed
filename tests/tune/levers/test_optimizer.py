import copy

import pytest
import torch
from torch import nn

from lightning_perf.tune.errors import NotApplicableError
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.optimizer import FusedOptimizer
from lightning_perf.tune.training import Training
from tests.tune.trainings import Tiny

CPU = Machine("cpu", None, 2, "a CPU")
LEVER = FusedOptimizer()

MAKERS = {
    "sgd": lambda p, **more: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, **more),
    "adagrad": lambda p, **more: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, **more),
    "adam": lambda p, **more: torch.optim.Adam(p, lr=0.1, amsgrad=True, **more),
    "adamw": lambda p, **more: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2, **more),
}


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("kind", MAKERS)
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
    flags = ("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused")
    assert {name: vars(fused).get(name) for name in flags} == {name: vars(built).get(name) for name in flags}
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
    assert LEVER.lines(training) == ("torch.optim.Adam(…, fused=True)  # in configure_optimizers",)
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
    clipped = {"precision": "16-mixed", "gradient_clip_val": 1.0}
    assert "clipping" in LEVER.missing(Training(Tiny(), None, clipped), CPU)
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), differentiable=True)
    assert "differentiable" in LEVER.missing(Training(module), CPU)


def test_optimizers_that_need_their_trainer_are_judged_when_it_is_there():
    class NeedsTrainer(Tiny):
        def configure_optimizers(self):
            assert self.trainer.estimated_stepping_batches
            return torch.optim.RMSprop(self.parameters())

    training = Training(NeedsTrainer())
    assert LEVER.missing(training, CPU) is None
    assert LEVER.lines(training) == ("torch.optim.…(…, fused=True)  # in configure_optimizers",)
    LEVER.apply(training)
    training.module._fabric = None
    training.module.trainer = type("Running", (), {"estimated_stepping_batches": 7})()
    with pytest.raises(NotApplicableError, match="RMSprop has no fused form"):
        training.module.configure_optimizers()


def test_a_precision_that_was_kept_before_excludes_it_with_clipping():
    training = Training(Tiny(), None, {"gradient_clip_val": 1.0})
    assert LEVER.missing(training, CPU) is None
    training.trainer["precision"] = "16-mixed"
    LEVER.apply(training)
    with pytest.raises(NotApplicableError, match="clipping"):
        training.module.configure_optimizers()
