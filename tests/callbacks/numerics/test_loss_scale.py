from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.analysis.precision.scales import summarize_loss_scale
from lightning_perf.callbacks.host_copy import HostCopy
from lightning_perf.callbacks.numerics.nonfinite import OverflowLocator
from lightning_perf.callbacks.numerics.replay import Replay
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from lightning_perf.run_files.numerics.samples import SCALE_EVENTS
from tests.callbacks.precision_training import Recipe, fit, make_net, stock_options, with_factor
from tests.callbacks.training import recording_logger

pytestmark = pytest.mark.usefixtures("fp16_on_cpu")


def test_injected_overflow_is_seen_counted_and_located(tmp_path) -> None:
    callback = PrecisionCallback("16-mixed", locate_overflows=1)
    module = make_net(Recipe(overflow_at=2, scheduler=True))
    learning_rates: list[float] = []
    weights: list[torch.Tensor] = []

    def look(*_: Any) -> None:
        learning_rates.append(module.optimizers().param_groups[0]["lr"])
        weights.append(module.fc.weight.detach().clone())

    module.on_before_zero_grad = look
    outcome = fit(tmp_path, callback, module)
    history = callback.loss_scale
    assert history is not None
    assert torch.equal(weights[2], weights[3])  # the step was skipped ...
    assert learning_rates[3] < learning_rates[2]  # ... and Lightning moved the schedule all the same
    assert (history.attempts, history.skipped_steps) == (6, 1)
    assert history.scales == (65536.0, 32768.0, 32768.0)
    assert history.scheduler_steps_on_skips == 1
    assert outcome.scaler is not None
    assert history.scales[-1] == outcome.scaler["scale"]
    overflow = history.events[1]
    assert (overflow.kind, overflow.step, overflow.attempts) == ("overflow", 2, 3)
    assert overflow.origin is not None
    assert overflow.origin.operator == "MulBackward0"
    assert 0 < overflow.wasted_ns < history.trained_ns
    assert 0 < history.goodput < 1
    (file,) = tmp_path.rglob("loss_scale.rank0.jsonl")
    assert summarize_loss_scale(SCALE_EVENTS.read(file)) == history


def test_the_time_of_a_diagnosis_is_not_wasted_by_the_loss_scale(tmp_path: Path, monkeypatch: Any) -> None:
    run, runs = Replay.run, []

    def slow_run(*args: Any, **options: Any) -> Any:
        time.sleep(1.0)
        runs.append(run(*args, **options))
        return runs[-1]

    monkeypatch.setattr(Replay, "run", slow_run)
    callback = PrecisionCallback("16-mixed")
    fit(tmp_path, callback, with_factor(make_net(), lambda: float("nan")), max_steps=2)
    assert len(runs) >= 3
    assert callback.bad_run is not None
    assert callback.loss_scale is not None
    assert callback.loss_scale.skipped_steps == 2
    assert 0 < callback.loss_scale.wasted_ns < 1e9 * len(runs)


class Overflowing(nn.Module):
    """Overflows in the forward pass, between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        nn.init.ones_(self.second.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second((torch.relu(self.first(x)) + 1) * 60_000)


def overflowing() -> Any:
    module = make_net()
    module.body = Overflowing()
    module.forward = lambda x: module.body(x)
    return module


def net(**recipe: Any) -> Callable[[], Any]:
    return partial(make_net, Recipe(**recipe))


LOCATED: dict[str, tuple[Callable[[], Any], dict[str, Any], tuple[str, str, str]]] = {
    "forward": (overflowing, {}, ("aten::mul", "body", "inf")),
    "loss": (lambda: with_factor(make_net(), lambda: float("nan")), {}, ("aten::mul", "", "nan")),
    "accumulation": (net(overflow_at=2), {"accumulate_grad_batches": 3}, ("aten::mul", "", "inf")),
    "manual": (net(manual=True, overflow_at=0), {}, ("", "fc", "nan")),
    "fused": (net(fused=True, overflow_at=0), {}, ("aten::mul", "", "inf")),
    "compiled": (net(compiled=True, overflow_at=0), {}, ("aten::mul", "", "inf")),
}


@pytest.mark.parametrize("case", LOCATED)
def test_the_operator_that_overflowed_is_named_and_the_training_stays_the_same(tmp_path, case):
    make, options, expected = LOCATED[case]
    callback = PrecisionCallback("16-mixed", locate_overflows=1)
    ours = fit(tmp_path, callback, make(), max_steps=2, **options)
    event = callback.loss_scale.events[1]
    assert (event.kind, event.step, event.attempts) == ("overflow", 0, 1)
    if case == "accumulation":
        assert event.wasted_ns == event.trained_ns  # of all three batches
    assert (event.origin.operator, event.origin.layer, event.origin.value) == expected
    assert event.origin.line.partition(":")[0].endswith(".py") == (case != "manual")
    stock = fit(tmp_path, None, make(), max_steps=2, **stock_options("16-mixed"), **options)
    assert str(ours.losses) == str(stock.losses)  # NaN differs from itself
    assert all(map(torch.equal, ours.weights, stock.weights))


def test_looking_for_origins_leaves_metrics_and_logs_alone(tmp_path) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    module = make_net(Recipe(overflow_at=1))
    module.metric = torchmetrics.MeanMetric()
    calls: list[int] = []

    def training_step(batch: Any, batch_idx: int) -> torch.Tensor:
        calls.append(batch_idx)
        loss = module.loss(batch)
        module.metric.update(1.0)
        module.log("loss", loss)
        return loss

    module.training_step = training_step
    callback = PrecisionCallback("16-mixed", locate_overflows=1)
    outcome = fit(tmp_path, callback, module, max_steps=3)
    assert calls == [0, 1, 1, 2]
    assert module.metric.weight == 3
    assert outcome.trainer.callback_metrics["loss"] == pytest.approx(module.losses[-1])


def test_the_host_waits_for_fused_verdicts_only_until_the_origins_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(overflow_at=2, fused=True)
    waits: list[int] = []
    read = HostCopy.read
    monkeypatch.setattr(HostCopy, "arrived", False)  # on the CPU, all verdicts arrive at once

    def waited_in(callback: PrecisionCallback) -> set[int]:
        """Return the steps in which a value was waited for, except those at the end of the fit."""
        module = make_net(recipe)
        waits.clear()
        step = lambda: waits.append(module.trainer.global_step)  # noqa: E731
        monkeypatch.setattr(HostCopy, "read", lambda copy: (step(), read(copy))[1])
        fit(tmp_path, callback, module, max_steps=6)
        return set(waits) - {6}

    assert waited_in(PrecisionCallback("16-mixed", locate_overflows=1)) == {1, 2, 3}
    assert waited_in(PrecisionCallback("16-mixed")) == set()


def test_the_scale_of_a_step_counts_steps_whose_verdict_has_not_been_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two overflows in a row: the second batch is run again with half the scale."""
    module = make_net(Recipe(fused=True))
    with_factor(module, lambda: float("inf") if module.trainer.fit_loop.total_batch_idx in (1, 2) else 1.0)
    scales: list[float] = []
    callback = PrecisionCallback("16-mixed", locate_overflows=2)
    locate = OverflowLocator.locate

    def watched(self: OverflowLocator, optimizer: Any, scale: float) -> Any:
        scales.append(scale)
        return locate(self, optimizer, scale)

    monkeypatch.setattr(OverflowLocator, "locate", watched)
    fit(tmp_path, callback, module)
    assert scales == [65536.0, 32768.0]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_mirrors_the_scaler_step_by_step(tmp_path, fused, accumulate) -> None:
    """152 of 152 updates in a run whose loss overflows at random, growing and shrinking the scale."""
    draw = torch.Generator().manual_seed(3)
    overflow = lambda: float("inf") if torch.rand((), generator=draw) < 0.2 else 1.0  # noqa: E731
    module = with_factor(make_net(Recipe(fused=fused)), overflow)
    logger = recording_logger(tmp_path)
    seen: list[tuple[float, int]] = []

    def look(outputs: Any, batch: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % accumulate == 0:
            state = module.trainer.scaler.state_dict()
            seen.append((state["scale"], state["_growth_tracker"]))

    module.on_train_batch_end = look
    options = stock_options("16-mixed", growth_interval=3, init_scale=2.0**20)
    callback = PrecisionCallback()
    options |= {"logger": logger, "log_every_n_steps": 1, "accumulate_grad_batches": accumulate}
    fit(tmp_path, callback, module, max_steps=152, **options)
    assert len(seen) == 152
    rows = [row for _, row in logger.rows if "perf/loss_scale" in row]
    assert [(row["perf/loss_scale"], int(row["perf/steps_since_scale_change"])) for row in rows] == seen
    assert callback.loss_scale is not None
    kinds = [event.kind for event in callback.loss_scale.events]
    assert kinds.count("overflow") > 10
    assert kinds.count("growth") > 10


def test_step_without_a_loss_is_no_attempt(tmp_path):
    module = make_net()
    plain = module.training_step
    module.training_step = lambda batch, batch_idx: None if batch_idx == 1 else plain(batch, batch_idx)
    module.on_train_batch_end = lambda *_: None
    callback = PrecisionCallback("16-mixed")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*training_step. returned .None")
        outcome = fit(tmp_path, callback, module, max_steps=5)
    assert (callback.loss_scale.attempts, callback.loss_scale.skipped_steps) == (4, 0)
    assert outcome.scaler["_growth_tracker"] == 4


def test_two_optimizers_after_one_backward_are_warned_of(tmp_path):
    module = make_net(Recipe(manual=True, optimizers=2))

    def training_step(batch: Any, batch_idx: int) -> None:
        optimizers = module.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        module.manual_backward(module.loss(batch))
        for optimizer in optimizers:
            optimizer.step()

    module.training_step = training_step
    callback = PrecisionCallback("16-mixed")
    with pytest.warns(UserWarning, match=r"manual_backward\(loss\) before each optimizer's step") as caught:
        fit(tmp_path, callback, module)
    assert len([w for w in caught if "manual_backward" in str(w.message)]) == 1
    assert callback.loss_scale.attempts == 6


def test_run_that_fails_keeps_its_history(tmp_path):
    module = make_net(Recipe(overflow_at=1))
    plain = module.training_step

    def training_step(batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == 4:
            raise ZeroDivisionError
        return plain(batch, batch_idx)

    module.training_step = training_step
    callback = PrecisionCallback("16-mixed")
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, callback, module)
    (file,) = tmp_path.rglob("loss_scale.rank0.jsonl")
    history = summarize_loss_scale(SCALE_EVENTS.read(file))
    assert (history.attempts, history.skipped_steps, history.finished) == (4, 1, True)
