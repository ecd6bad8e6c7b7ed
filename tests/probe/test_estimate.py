import random
from itertools import product
from statistics import pstdev

import numpy as np
import pytest

from lightning_perf.analysis.model.operators import OperatorCall, OperatorCalls
from lightning_perf.probe.estimate import (
    NOISE_SDS,
    OPERATOR_ERRORS,
    SLOWER,
    Part,
    Saving,
    StepParts,
    estimate_calls,
    estimate_fixed,
    first_settled_round,
    fit_into_step,
    lower_quartile,
    noise_ns,
    pace_of_recording,
    usual_calls,
    usual_optimizer_ns,
    widen,
)
from lightning_perf.probe.replay.messages import Times


def call(forward_ns: int, backward_ns: int, calls: int = 1, name: str = "aten::linear") -> OperatorCall:
    return OperatorCall(name, "[]", "[]", "[]", "[]", calls, forward_ns, backward_ns, backward_ns > 0)


def recording(*calls: OperatorCall, steps: int = 1, unmatched_ns: int = 0) -> OperatorCalls:
    return OperatorCalls(steps, False, None, calls, tuple(range(len(calls))), (), unmatched_ns)


def errors(changed_ns: float, measured_ns: float) -> tuple[float, float]:
    down, up, of_time = OPERATOR_ERRORS
    return down * changed_ns + of_time * measured_ns, up * changed_ns + of_time * measured_ns


def test_one_call_that_gets_twice_as_fast() -> None:
    calls = recording(call(600, 400))
    times = (Times(0, "current", (6.0, 6.0), (4.0, 4.0)), Times(0, "fast", (3.0, 3.0), (2.0, 2.0)))
    saving = estimate_calls(calls, times, "current", "fast")
    assert saving == Saving(500.0, 0.0, 500.0, 1000.0, 0.0, 0.0, 2)
    down, up = errors(500, 1000)
    assert widen(saving, OPERATOR_ERRORS) == pytest.approx((500 - down, 500 + up))


def quartile(values: tuple[float, ...]) -> float:
    return float(np.quantile(values, 0.25))


def test_the_step_is_put_together_as_by_brute_force() -> None:
    random.seed(1)
    steps = 3
    calls = [
        call(random.randrange(1000, 9000), random.choice([0, random.randrange(1000, 9000)]), name=f"aten::op{n}")
        for n in range(20)
    ]
    whole = recording(*calls, steps=steps, unmatched_ns=600)
    times = []
    for place in range(17):  # three calls were not measured
        for setting in ("current", "changed"):
            # In ascending order, so that no round counts as one that still warms up.
            rounds = [tuple(sorted(random.uniform(1, 9) for _ in range(5))) for _ in range(2)]
            times.append(Times(place, setting, rounds[0], rounds[1]))
    saving = estimate_calls(whole, times, "current", "changed")
    old = {one.call: one for one in times if one.setting == "current"}
    new = {one.call: one for one in times if one.setting == "changed"}
    before = after = 0.0
    for place, one in enumerate(calls):
        for which in ("forward_ns", "backward_ns"):
            recorded = getattr(one, which) / steps
            before += recorded
            after += recorded
            if place in old and recorded:
                after -= recorded * (1 - quartile(getattr(new[place], which)) / quartile(getattr(old[place], which)))
    assert saving.saving_ns == pytest.approx(before - after)
    assert saving.measured_ns + saving.other_ns == pytest.approx(before + 600 / steps)
    assert saving.noise_ns > 0


def test_rounds_that_warm_up_do_not_count() -> None:
    """The other setting needs 2.5 times as long in its first round, and halves the time from then on."""
    calls = recording(call(600, 400))
    times = (
        Times(0, "current", (6.0,) * 4, (4.0,) * 4),
        Times(0, "changed", (9.0, 3.0, 3.0, 3.0), (3.5, 2.0, 2.0, 2.0)),
    )
    saving = estimate_calls(calls, times, "current", "changed")
    assert (saving.saving_ns, saving.noise_ns, saving.rounds) == (500.0, 0.0, 3)


def test_settings_are_compared_in_the_same_rounds() -> None:
    """The machine is half as fast from the third round on. One setting starts a round later and ends a round sooner."""
    times = (
        Times(0, "current", (10.0, 10.0, 20.0, 20.0, 20.0, 20.0), ()),
        Times(0, "changed", (8.0, 16.0, 16.0, 16.0), (), first_round=2),
    )
    saving = estimate_calls(recording(call(1000, 0)), times, "current", "changed")
    assert saving.rounds == 4
    assert saving.saving_ns == pytest.approx(1000 * (1 - quartile((8, 16, 16, 16)) / quartile((10, 20, 20, 20))))
    assert saving.saving_ns == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("rounds", "settled"),
    [
        ((20.0, 10.0, 10.0, 10.0), 2),
        ((20.0, 15.0, 10.0, 10.0, 10.0), 3),
        ((10.4, 10.0, 10.0, 10.0), 1),  # within 5 %
        ((10.0, 30.0, 10.0, 10.0), 1),  # a later round was disturbed
        ((20.0, 10.0), 1),  # nobody knows which one is usual
        ((40.0, 20.0, 10.0), 2),  # two rounds remain
        ((), 0),
    ],
)
def test_the_first_round_that_no_longer_warms_up(rounds: tuple[float, ...], settled: int) -> None:
    assert first_settled_round([Times(0, "current", rounds, ())]) == settled


def test_a_call_that_joined_later_does_not_make_a_round_look_short() -> None:
    first, joined = Times(0, "a", (20.0, 10.0, 10.0, 10.0), ()), Times(1, "a", (50.0, 50.0, 50.0), (), first_round=2)
    assert first_settled_round([first, joined]) == 2


def test_a_larger_batch_counts_per_sample() -> None:
    times = (Times(0, "current", (5.0,), ()), Times(0, "batch", (10.0,), ()))
    saving = estimate_calls(recording(call(100, 0)), times, "current", "batch", batch=2)
    assert saving.saving_ns == 0.0


def test_calls_that_were_not_measured_widen_one_end() -> None:
    gain, loss = Saving(100.0, 0.0, 100.0, 500.0, 0.0, 500.0, 3), Saving(-100.0, 0.0, 100.0, 500.0, 0.0, 500.0, 3)
    down, up = errors(100, 500)
    assert widen(gain, OPERATOR_ERRORS) == pytest.approx((100 - down, 200 + up))
    assert widen(loss, OPERATOR_ERRORS) == pytest.approx((-200 - down, -100 + up))


def test_half_the_cost_of_page_faults_that_the_probe_lacks_widens_the_range() -> None:
    saving = Saving(100.0, 0.0, 100.0, 500.0, 0.0, 0.0, 3)
    down, up = errors(100, 500)
    low, high = widen(saving, OPERATOR_ERRORS, 40.0)
    assert (low, high) == pytest.approx((100 - (down**2 + 20**2) ** 0.5, 100 + (up**2 + 20**2) ** 0.5))


def test_measured_calls_stand_for_others_of_the_same_operator() -> None:
    """Four of seven products are measured, and save 50 % of 1,000, 40 % of 2,000, 60 % of 2,000 and 45 % of 1,000."""
    sizes, kept = (1000, 2000, 2000, 1000), (0.5, 0.6, 0.4, 0.55)
    calls = recording(*(call(size, 0) for size in (*sizes, 300, 500, 200)), call(700, 0, name="aten::relu"))
    times = [
        Times(place, setting, (float(size * ratio),) * 4, ())
        for place, size in enumerate(sizes)
        for setting, ratio in (("current", 1.0), ("changed", kept[place]))
    ]
    saving = estimate_calls(calls, times, "current", "changed")
    share = (500 + 800 + 1200 + 450) / 6000
    assert (saving.measured_ns, saving.similar_ns, saving.other_ns) == (6000, 1000, 700)
    assert saving.saving_ns == pytest.approx(share * 7000)
    squares = [size * (1 - ratio - share) ** 2 for size, ratio in zip(sizes, kept, strict=True)]
    spread = sum(squares) / 6000 * 4 / 3
    assert saving.noise_ns == pytest.approx(2 * (spread * (1000**2 / 4 + 300**2 + 500**2 + 200**2)) ** 0.5)
    three = estimate_calls(calls, times[:-2], "current", "changed")
    assert three.similar_ns == 0  # too few to stand for others
    assert three.other_ns == 2700


def test_the_error_of_calls_that_others_stand_for_holds() -> None:
    generator = random.Random(3)
    inside = 0
    for _ in range(300):
        kept = [generator.gauss(0.6, 0.1) for _ in range(20)]
        sizes = [generator.randrange(1000, 5000) for _ in range(20)]
        calls = recording(*(call(size, 0) for size in sizes))
        times = [
            Times(place, setting, (size * ratio,) * 4, ())
            for place, size in enumerate(sizes[:8])
            for setting, ratio in (("current", 1.0), ("changed", kept[place]))
        ]
        saving = estimate_calls(calls, times, "current", "changed")
        real = sum(size * (1 - ratio) for size, ratio in zip(sizes, kept, strict=True))
        inside += abs(saving.saving_ns - real) <= saving.noise_ns
    assert inside >= 0.9 * 300


def test_gains_and_losses_do_not_hide_the_error() -> None:
    """Calls that gain as much as others lose are no certain zero."""
    times = (
        *(Times(place, "current", (2.0, 2.0), ()) for place in (0, 1)),
        Times(0, "changed", (1.0, 1.0), ()),
        Times(1, "changed", (3.0, 3.0), ()),
    )
    saving = estimate_calls(recording(call(1000, 0), call(1000, 0)), times, "current", "changed")
    assert saving.saving_ns == 0.0
    low, high = widen(saving, OPERATOR_ERRORS)
    down, up = errors(500 * 2**0.5, 2000)  # the errors of gain and loss are independent
    assert (low, high) == pytest.approx((-down, up))


def test_nothing_measured() -> None:
    assert estimate_calls(recording(call(100, 50)), (), "current", "changed") == Saving(
        0.0, 0.0, 0.0, 0.0, 0.0, 150.0, 0
    )
    assert estimate_fixed(100.0, {}, "loop", "fused").rounds == 0


def test_a_disturbed_round_is_no_noise() -> None:
    calls = recording(call(1000, 0))
    steady = (2.0, 2.02, 1.98, 2.01, 1.99, 2.0, 2.02, 1.98)
    current = Times(0, "current", steady, ())

    def noise_of(changed: tuple[float, ...]) -> float:
        return estimate_calls(calls, (current, Times(0, "changed", changed, ())), "current", "changed").noise_ns

    quiet, disturbed = noise_of(steady[::-1]), noise_of((*steady[::-1][:-1], 9.0))
    assert 0 < quiet < 30
    assert disturbed < 2 * quiet
    assert noise_of((2.0, 9.0)) > 1000  # but of two rounds, nobody knows which one was disturbed


def test_noise_covers_the_error_of_the_median() -> None:
    generator = random.Random(2)
    calls = recording(call(1000, 0))
    covered = 0
    for _ in range(400):
        old, new = (tuple(mean * generator.gauss(1, 0.05) for _ in range(12)) for mean in (2.0, 1.0))
        saving = estimate_calls(calls, (Times(0, "a", old, ()), Times(0, "b", new, ())), "a", "b")
        covered += abs(saving.saving_ns - 500) <= saving.noise_ns
    assert covered >= 0.9 * 400


def test_calls_that_were_slow_in_the_recording_get_their_usual_time() -> None:
    """Three calls at a pace of 1.2, one of them with a pause in its backward pass, and one that was not measured."""
    calls = recording(call(1200, 2400), call(1200, 9000), call(600, 0, calls=2), call(500, 300), unmatched_ns=100)
    times = tuple(
        Times(place, "current", (forward,), (backward,) if backward else ())
        for place, (forward, backward) in enumerate(((1000.0, 2000.0), (1000.0, 2000.0), (250.0, 0.0)))
    )
    assert pace_of_recording(calls, times, "current") == pytest.approx(1.2)
    usual = usual_calls(calls, times, "current")
    slow_ns = round(SLOWER * 1.2 * 2000)
    assert [(one.forward_ns, one.backward_ns) for one in usual.calls[:3]] == [(1200, 2400), (1200, slow_ns), (600, 0)]
    shrunk = (3600 + 1200 + slow_ns + 600) / (3600 + 10200 + 600)
    assert usual.calls[3].forward_ns == pytest.approx(500 * shrunk, abs=1)
    assert usual.unmatched_ns == pytest.approx(100 * shrunk, abs=1)


def test_nothing_is_unusual_without_a_probe() -> None:
    calls = recording(call(1200, 2400), unmatched_ns=7)
    assert usual_calls(calls, (), "current") == calls
    assert pace_of_recording(calls, (), "current") == 1.0


def test_an_optimizer_step() -> None:
    saving = estimate_fixed(100.0, {"loop": (8.0, 8.0, 8.0), "fused": (2.0, 2.0, 2.0)}, "loop", "fused")
    assert (saving.saving_ns, saving.noise_ns, saving.rounds) == (75.0, 0.0, 3)


def test_an_optimizer_that_was_slow_in_the_recording() -> None:
    assert usual_optimizer_ns(109.0, (90.0, 110.0, 500.0), 1.0) == 109.0
    assert usual_optimizer_ns(300.0, (90.0, 110.0, 500.0), 1.0) == 100.0
    assert usual_optimizer_ns(300.0, (100.0, 100.0), 1.2) == pytest.approx(120.0)
    assert usual_optimizer_ns(300.0, (), 1.2) == 300.0


def test_parts_that_take_longer_than_a_step_are_shortened_alike() -> None:
    parts = StepParts(recording(call(400, 200), call(200, 0), steps=2, unmatched_ns=400), 300.0)
    assert parts.sum_ns == 900
    assert fit_into_step(parts, parts, 10.0, 900.0) == parts
    fitted = fit_into_step(parts, parts, 10.0, 450.0)
    assert (fitted.calls.step_ns, fitted.optimizer_ns) == (300.0, 150.0)
    assert [(one.forward_ns, one.backward_ns) for one in fitted.calls.calls] == [(200, 100), (100, 0)]
    assert fitted.calls.unmatched_ns == 200


def test_parts_get_their_recorded_times_if_the_step_has_room() -> None:
    recorded = StepParts(recording(call(1000, 400), call(100, 0)), 140.0)
    usual = StepParts(recording(call(500, 400), call(100, 0)), 100.0)
    assert fit_into_step(recorded, usual, 50.0, 1150.0) == usual
    assert fit_into_step(recorded, usual, 50.0, 5000.0) == recorded
    half = fit_into_step(recorded, usual, 50.0, 1420.0)
    assert [(one.forward_ns, one.backward_ns) for one in half.calls.calls] == [(750, 400), (100, 0)]
    assert half.optimizer_ns == pytest.approx(120.0)


@pytest.mark.parametrize("count", range(2, 12))
def test_the_lower_quartile(count: int) -> None:
    values = tuple(random.Random(count).uniform(1, 2) for _ in range(count))
    assert lower_quartile(values) == pytest.approx(quartile(values))


def test_few_values() -> None:
    assert lower_quartile(()) == 0.0
    assert lower_quartile((3.0,)) == 3.0


def test_the_noise_is_that_of_all_ways_to_draw_rounds() -> None:
    """There are 256 ways to draw four of four rounds. A draw takes the same rounds of all parts and settings."""
    parts = [
        Part(700.0, (10.0, 12.0, 10.5, 11.0), (5.0, 6.5, 5.2, 5.1)),
        Part(300.0, (20.0, 21.0, 23.0, 22.0), (19.0, 18.0, 22.0, 21.0)),
    ]
    savings = []
    for rounds in product(range(4), repeat=4):
        drawn = [[tuple(times[at] for at in rounds) for times in (part.before, part.after)] for part in parts]
        savings.append(
            sum(part.recorded_ns * quartile(b) / quartile(a) for part, (a, b) in zip(parts, drawn, strict=True))
        )
    assert noise_ns(parts) == pytest.approx(NOISE_SDS * 4 / 3 * pstdev(savings), rel=0.25)


def test_a_stretch_in_which_all_is_slower_is_no_noise() -> None:
    slow = (1.0, 1.0, 1.6, 1.6, 1.0)
    part = Part(100.0, [10.0 * by for by in slow], [7.0 * by for by in slow])
    assert part.saving_ns == pytest.approx(30.0)
    assert noise_ns([part]) == pytest.approx(0.0)


def test_one_round_says_little() -> None:
    assert noise_ns([Part(100.0, [1.0], [0.5]), Part(50.0, [1.0, 1.0], [0.5, 0.5])]) == 300.0
    assert noise_ns([]) == 0.0
