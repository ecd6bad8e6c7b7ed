from __future__ import annotations

import random
from statistics import median

import pytest

from lightning_perf.analysis.model.operator_calls import OperatorCall, OperatorCalls
from lightning_perf.probe.estimate import RELATIVE_ERROR, STEP_ERROR, Saving, estimate_calls, estimate_fixed, widen
from lightning_perf.probe.messages import Times


def call(forward_ns: int, backward_ns: int, calls: int = 1) -> OperatorCall:
    return OperatorCall("aten::linear", "[]", "[]", "[]", "[]", calls, forward_ns, backward_ns, backward_ns > 0)


def recording(*calls: OperatorCall, steps: int = 1, unmatched_ns: int = 0) -> OperatorCalls:
    return OperatorCalls(steps, False, None, calls, tuple(range(len(calls))), (), unmatched_ns)


def test_one_call_that_gets_twice_as_fast() -> None:
    calls = recording(call(600, 400))
    times = (Times(0, "current", (6.0, 6.0), (4.0, 4.0)), Times(0, "fast", (3.0, 3.0), (2.0, 2.0)))
    saving = estimate_calls(calls, times, "current", "fast")
    assert saving == Saving(500.0, 0.0, 500.0, 1000.0, 0.0, 2)
    half = RELATIVE_ERROR * 500 + STEP_ERROR * 1000
    assert widen(saving) == pytest.approx((500 - half, 500 + half))


def test_the_step_is_put_together_as_by_brute_force() -> None:
    random.seed(1)
    steps = 3
    calls = [call(random.randrange(1000, 9000), random.choice([0, random.randrange(1000, 9000)])) for _ in range(20)]
    whole = recording(*calls, steps=steps, unmatched_ns=600)
    times = []
    for place in range(17):  # three calls were not measured
        for setting in ("current", "changed"):
            rounds = [tuple(random.uniform(1, 9) for _ in range(5)) for _ in range(2)]
            times.append(Times(place, setting, rounds[0], rounds[1]))
    saving = estimate_calls(whole, times, "current", "changed")
    old = {one.call: one for one in times if one.setting == "current"}
    new = {one.call: one for one in times if one.setting == "changed"}
    before = after = 0.0
    for place, one in enumerate(calls):
        for recorded, old_ns, new_ns in (
            (one.forward_ns, old[place].forward_ns, new[place].forward_ns)
            if place in old
            else (one.forward_ns, (1,), (1,)),
            (one.backward_ns, old[place].backward_ns, new[place].backward_ns)
            if place in old
            else (one.backward_ns, (1,), (1,)),
        ):
            before += recorded / steps
            after += recorded / steps * median(new_ns) / median(old_ns)
    assert saving.saving_ns == pytest.approx(before - after)
    assert saving.measured_ns + saving.other_ns == pytest.approx(before + 600 / steps)
    assert saving.noise_ns > 0


def test_a_larger_batch_counts_per_sample() -> None:
    times = (Times(0, "current", (5.0,), ()), Times(0, "batch", (10.0,), ()))
    saving = estimate_calls(recording(call(100, 0)), times, "current", "batch", batch=2)
    assert saving.saving_ns == 0.0


def test_calls_that_were_not_measured_widen_one_end() -> None:
    gain, loss = Saving(100.0, 0.0, 100.0, 500.0, 500.0, 3), Saving(-100.0, 0.0, 100.0, 500.0, 500.0, 3)
    half = RELATIVE_ERROR * 100 + STEP_ERROR * 500
    assert widen(gain) == pytest.approx((100 - half, 200 + half))
    assert widen(loss) == pytest.approx((-200 - half, -100 + half))


def test_gains_and_losses_do_not_hide_the_error() -> None:
    """Calls that gain as much as others lose are no certain zero."""
    times = (
        *(Times(place, "current", (2.0, 2.0), ()) for place in (0, 1)),
        Times(0, "changed", (1.0, 1.0), ()),
        Times(1, "changed", (3.0, 3.0), ()),
    )
    saving = estimate_calls(recording(call(1000, 0), call(1000, 0)), times, "current", "changed")
    assert saving.saving_ns == 0.0
    low, high = widen(saving)
    assert low <= -RELATIVE_ERROR * 1000
    assert high >= RELATIVE_ERROR * 1000


def test_nothing_measured() -> None:
    assert estimate_calls(recording(call(100, 50)), (), "current", "changed") == Saving(0.0, 0.0, 0.0, 0.0, 150.0, 0)
    assert estimate_fixed(100.0, {}, "loop", "fused").rounds == 0


def test_an_optimizer_step() -> None:
    saving = estimate_fixed(100.0, {"loop": (8.0, 8.0, 8.0), "fused": (2.0, 2.0, 2.0)}, "loop", "fused")
    assert (saving.saving_ns, saving.noise_ns, saving.rounds) == (75.0, 0.0, 3)
