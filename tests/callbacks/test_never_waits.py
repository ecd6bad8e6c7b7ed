"""The callbacks never wait for the device in a step: what they call of torch reads no tensor's value on the host.

On a GPU each such call would hold the host until the device has done all that is queued (``tests/on_gpu.py`` has torch
itself look for it). On a CPU the calls are the same, and can be counted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_perf import PerfCallback, PrecisionCallback
from lightning_perf.callbacks.numerics.loss_scale import Attempt
from tests.callbacks.precision_training import Recipe, fit, make_net
from tests.callbacks.training import loader, make_module, make_trainer
from tests.support.operators import Operators

STEP_HOOKS = (
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
)
READS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select")
"""Operators that need a value on the host."""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What waited: operators noted by `watched` hooks, and calls that wait by their nature."""
    found: list[str] = []

    def noted(name: str) -> Callable[..., None]:
        return lambda *_, **__: found.append(name)

    monkeypatch.setattr(torch.cuda, "synchronize", noted("torch.cuda.synchronize"))
    monkeypatch.setattr(torch.cuda.Event, "synchronize", noted("Event.synchronize"))
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", noted("Stream.synchronize"))
    return found


def watched(callback: Any, waits: list[str]) -> Any:
    """The callback, its hooks of a step under watch."""

    def under_watch(hook: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **options: Any) -> None:
            with Operators(lambda name, _: waits.append(name) if name in READS else None):
                hook(*arguments, **options)

        return call

    for name in STEP_HOOKS:
        if name in dir(type(callback)):  # Lightning's base class joins with the package and does nothing
            setattr(callback, name, under_watch(getattr(callback, name)))
    return callback


def test_perf_callback_reads_no_value_in_a_step(tmp_path: Path, waits: list[str]) -> None:
    callback = PerfCallback(skip_first=3, warmup=1, active=2, dirpath=tmp_path / "perf", report="none")
    make_trainer(tmp_path, watched(callback, waits), max_epochs=1).fit(make_module(), loader(20))
    assert waits == []


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("settings", "overflow_at"),
    [
        # The batch with the overflow has a loss of NaN. Its diagnosis reads values, once in a run.
        ({"underflow_every_n_steps": 1, "diagnose": "off"}, 2),
        ({"diagnose": "loss"}, None),
    ],
)
@pytest.mark.usefixtures("fp16_on_cpu")
def test_precision_callback_reads_no_value_but_those_that_have_arrived(
    tmp_path: Path,
    waits: list[str],
    monkeypatch: pytest.MonkeyPatch,
    fused: bool,
    settings: dict[str, Any],
    overflow_at: int | None,
) -> None:
    read, finish = Attempt.overflowed, PrecisionCallback.on_train_end

    def arrived(self: Attempt, *, wait: bool) -> bool | None:
        assert not wait
        before = len(waits)
        verdict = read(self, wait=wait)
        del waits[before:]  # on a GPU this value is on the host, and its event has been asked
        return verdict

    def finished(self: PrecisionCallback, *arguments: Any) -> None:
        monkeypatch.setattr(Attempt, "overflowed", read)
        finish(self, *arguments)

    monkeypatch.setattr(Attempt, "overflowed", arrived)
    monkeypatch.setattr(PrecisionCallback, "on_train_end", finished)
    callback = watched(PrecisionCallback("16-mixed", **settings), waits)
    fit(tmp_path, callback, make_net(Recipe(fused=fused, overflow_at=overflow_at)))
    assert waits == []


def test_the_watch_finds_a_read(waits: list[str]) -> None:
    class Reading:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: None

        def on_train_batch_end(self) -> None:
            torch.ones(2).sum().item()

    watched(Reading(), waits).on_train_batch_end()
    assert waits == ["_local_scalar_dense"]
