"""Copies of 16-bit weights: averages lose digits, other copies are no mistake. Updates that are too small get lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.callbacks.precision_callback import PrecisionCallback
from lightning_perf.run_files.numerics.precision import PrecisionMistake
from tests.callbacks.precision_gallery.planted import Net
from tests.callbacks.precision_training import batches
from tests.callbacks.training import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:Mixed precision")


class Half(Net):
    """A training in bf16-true that learns fast enough for its weights."""

    rate = 0.05

    def __init__(self) -> None:
        super().__init__(fixed=False)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self(batch[0].to(self.dtype)).float(), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), self.rate)

    def copies(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.parameters()]


def mistakes(tmp_path: Any, module: Half, **options: Any) -> tuple[PrecisionMistake, ...]:
    callback = PrecisionCallback(dirpath=tmp_path / "perf")
    settings = {"precision": "bf16-true", "max_epochs": 3, **options}
    make_trainer(tmp_path, callback, **settings).fit(module, batches())
    return callback.mistakes


class KeptStart(Half):
    def on_train_start(self) -> None:
        self.start = self.copies()


class KeptFromTheConstructor(Half):
    def build(self) -> None:
        self.start = [one.bfloat16() for one in self.copies()]


class LastWeights(Half):
    """Replaces its copy after each step."""

    def on_train_batch_end(self, *call: Any) -> None:
        self.last = self.copies()


class LastWeightsInPlace(Half):
    def on_train_start(self) -> None:
        self.last = self.copies()

    def on_train_batch_end(self, *call: Any) -> None:
        for old, new in zip(self.last, self.parameters(), strict=True):
            old.copy_(new.detach())


class AverageFromTheStart(Half):
    def on_train_start(self) -> None:
        self.mean = self.copies()

    def on_train_batch_end(self, *call: Any) -> None:
        for mean, weight in zip(self.mean, self.parameters(), strict=True):
            mean.lerp_(weight.detach(), 0.1)


class AverageInNewTensors(AverageFromTheStart):
    def on_train_batch_end(self, *call: Any) -> None:
        self.mean = [mean.lerp(w.detach(), 0.1) for mean, w in zip(self.mean, self.parameters(), strict=True)]


def with_rate(rate: float) -> Half:
    module = Half()
    module.rate = rate
    return module


def test_the_share_of_lost_updates_is_counted(tmp_path):
    module = with_rate(1e-5)
    start = [p.detach().bfloat16() for p in module.parameters()]
    (found,) = mistakes(tmp_path, module)
    kept = sum(int((p == q).sum()) for p, q in zip(start, module.parameters(), strict=True))
    total = sum(p.numel() for p in module.parameters())  # all of them have gradients, and all are sampled
    assert found.title == f"Updates are lost: 18 steps left {100 * kept / total:.1f} % of the BF16 weights unchanged"
    assert found.evidence[0].startswith(f"Of {total:,} sampled weights, {kept:,} are as before: ")
    assert kept / total > 0.9


class Frozen(Half):
    def build(self) -> None:
        self.net[0].requires_grad_(False)


class Unused(Half):
    """Most of its weights never get a gradient."""

    def build(self) -> None:
        self.unused = nn.Linear(64, 64)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx) + 0 * sum(p.float().sum() for p in self.unused.parameters())


AVERAGES = (AverageFromTheStart, AverageInNewTensors)


@pytest.mark.parametrize(
    "kind", [*AVERAGES, KeptStart, KeptFromTheConstructor, LastWeights, LastWeightsInPlace, Half, Frozen, Unused]
)
def test_averages_are_found_and_other_copies_and_weights_are_no_mistake(tmp_path, kind):
    assert [one.kind for one in mistakes(tmp_path, kind())] == ["half-averages"] * (kind in AVERAGES)


@pytest.mark.parametrize("options", [{"precision": "bf16-mixed"}, {"max_epochs": 1, "limit_train_batches": 5}])
def test_fp32_weights_and_short_trainings_are_not_judged(tmp_path, options):
    assert mistakes(tmp_path, with_rate(1e-5), **options) == ()
