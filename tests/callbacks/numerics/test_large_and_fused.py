"""`guard_steps` on large outputs, and `locate_overflows` with fused optimizers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.callbacks.numerics import guard
from lightning_perf.callbacks.numerics.guard import DRIFT_VALUES
from lightning_perf.callbacks.numerics.loss_scale import PendingVerdict
from lightning_perf.callbacks.numerics.nonfinite import OverflowLocator
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from tests.callbacks.precision_training import Recipe, batches, fit, make_net, same, stock_options

pytestmark = pytest.mark.usefixtures("fp16_on_cpu")


def guarded_net() -> Any:
    module = make_net()
    module.body = nn.Sequential(nn.Linear(8, 4096), nn.Tanh(), nn.Linear(4096, 16))
    return module


def test_drift_of_large_outputs_is_that_of_all_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "DRIFT_VALUES", 4096)
    module = guarded_net()
    first = next(iter(batches()))[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = module.body[0](first).float()
    exact = module.body[0](first)
    assert exact.numel() > 4 * 4096
    expected = float(((mixed - exact).norm() / exact.norm()).detach())
    callback = PrecisionCallback("bf16-mixed", guard_steps=2, underflow_every_n_steps=0)
    fit(tmp_path, callback, module)
    assert callback.numerics is not None
    drift = {row.name: row.relative_error for row in callback.numerics.layers}
    assert drift["body.0"] == pytest.approx(expected, rel=0.05)


def test_the_values_of_two_passes_stand_at_the_same_places_in_any_layout() -> None:
    output = torch.arange(2 * 8 * 64 * 128, dtype=torch.float32).reshape(2, 8, 64, 128)
    assert output.numel() > DRIFT_VALUES
    before = torch.get_rng_state()
    first = guard._sampled(output)
    second = guard._sampled(output.to(memory_format=torch.channels_last).double())
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
    assert (first.numel(), first.dtype) == (DRIFT_VALUES, torch.float32)
    # Spread over all of it: every channel of every sample comes up.
    assert len({int(value) // (64 * 128) for value in first.tolist()}) == 16


def test_sampling_draws_nothing_from_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "DRIFT_VALUES", 16)
    ours = fit(tmp_path, PrecisionCallback("16-mixed", guard_steps=2, underflow_every_n_steps=0), make_net())
    assert same(ours, fit(tmp_path, None, make_net(), **stock_options("16-mixed")))


def test_an_overflow_with_a_fused_optimizer_is_located(tmp_path: Path) -> None:
    callback = PrecisionCallback("16-mixed", locate_overflows=1)
    fit(tmp_path, callback, make_net(Recipe(overflow_at=2, fused=True)))
    assert callback.loss_scale is not None
    overflow = callback.loss_scale.events[1]
    assert (overflow.kind, overflow.step, overflow.attempts) == ("overflow", 2, 3)
    assert overflow.origin is not None
    assert overflow.origin.module == "fc"


def test_looking_for_origins_with_a_fused_optimizer_changes_nothing(tmp_path: Path) -> None:
    recipe = Recipe(overflow_at=2, fused=True)
    ours = fit(tmp_path, PrecisionCallback("16-mixed", locate_overflows=2), make_net(recipe))
    assert same(ours, fit(tmp_path, None, make_net(recipe), **stock_options("16-mixed")))


def test_the_host_waits_for_fused_verdicts_only_until_the_origins_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make_net(Recipe(overflow_at=2, fused=True))
    waits: list[int] = []
    read = PendingVerdict.read

    def watched(self: PendingVerdict, *, wait: bool = False) -> bool | None:
        if wait:
            waits.append(module.trainer.global_step)
        return read(self, wait=wait)

    monkeypatch.setattr(PendingVerdict, "read", watched)
    fit(tmp_path, PrecisionCallback("16-mixed", locate_overflows=1), module, max_steps=6)
    assert waits == [1, 2, 3]
    waits.clear()
    fit(tmp_path, PrecisionCallback("16-mixed"), make_net(Recipe(overflow_at=2, fused=True)), max_steps=6)
    assert waits == []


def test_the_scale_of_a_step_counts_steps_whose_verdict_has_not_been_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two overflows in a row: the second batch is run again with half the scale."""
    module = make_net(Recipe(fused=True))
    plain = module.loss
    calls = SimpleNamespace(batch=-1)

    def loss(batch: Any) -> torch.Tensor:
        scaled: torch.Tensor = plain(batch) * (float("inf") if calls.batch in (1, 2) else 1.0)
        return scaled

    module.loss = loss
    module.on_train_batch_start = lambda batch, batch_idx: setattr(calls, "batch", batch_idx)
    scales: list[float] = []
    callback = PrecisionCallback("16-mixed", locate_overflows=2)
    locate = OverflowLocator.locate

    def watched(self: OverflowLocator, optimizer: Any, scale: float) -> Any:
        scales.append(scale)
        return locate(self, optimizer, scale)

    monkeypatch.setattr(OverflowLocator, "locate", watched)
    fit(tmp_path, callback, module)
    assert scales == [65536.0, 32768.0]
