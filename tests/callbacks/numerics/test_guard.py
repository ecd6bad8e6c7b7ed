"""`guard_steps`: the first steps of a training next to the same steps in FP32."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.callbacks.precision_callback import Precision, PrecisionCallback
from tests.callbacks.precision_training import MODES, Recipe, fit, make_net

pytestmark = pytest.mark.usefixtures("fp16_on_cpu")


def guarded(mode: Precision, steps: int = 3) -> PrecisionCallback:
    return PrecisionCallback(mode, guard_steps=steps, underflow_every_n_steps=0)


SETTINGS: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "plain": (Recipe(), {}),
    "schedule and clipping": (Recipe(scheduler=True), {"gradient_clip_val": 0.1}),
    "accumulation": (Recipe(), {"accumulate_grad_batches": 2}),
    "compiled": (Recipe(compiled=True), {}),
    "fused": (Recipe(fused=True), {}),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_replays_what_an_fp32_training_would_have_done(tmp_path, setting):
    recipe, options = SETTINGS[setting]
    callback = guarded("bf16-mixed")
    fit(tmp_path, callback, make_net(recipe), **options)
    accumulate = options.get("accumulate_grad_batches", 1)
    plain = fit(tmp_path, None, make_net(recipe), max_steps=3, **options)
    drift = callback.numerics
    assert len(drift.mixed_losses) == len(drift.fp32_losses) == 3 * accumulate
    # The replay runs eagerly: compiled code may round otherwise.
    assert drift.fp32_losses == pytest.approx([loss * accumulate for loss in plain.losses], rel=1e-6)
    assert drift.mixed_losses != drift.fp32_losses


@pytest.mark.parametrize("mode", MODES)
def test_sound_mixed_precision_is_within_seed_noise(tmp_path, mode):
    callback = guarded(mode, steps=6)
    fit(tmp_path, callback, make_net())
    assert not callback.numerics.beyond_seed_noise
    assert callback.underflow is None  # nobody asked for it
    assert not list(tmp_path.rglob("underflow*"))
    assert callback.numerics.expected_low < callback.numerics.mixed_end < callback.numerics.expected_high


def test_harm_is_beyond_seed_noise(tmp_path):
    # A scale at which every gradient underflows: the mixed run learns nothing.
    callback = PrecisionCallback("16-mixed", guard_steps=6, init_scale=2.0**-40)
    fit(tmp_path, callback, make_net())
    assert callback.numerics.beyond_seed_noise
    assert callback.numerics.mixed_end > callback.numerics.fp32_end


def test_fit_that_ends_before_has_no_comparison(tmp_path):
    callback = guarded("bf16-mixed", steps=9)
    fit(tmp_path, callback, make_net())
    assert callback.numerics is None
