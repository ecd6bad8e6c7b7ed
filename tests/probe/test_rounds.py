"""Which calls and settings get further rounds, with made-up times instead of operators."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.model.operators import OperatorCalls
from lightning_perf.probe.replay import rounds as rounds_module
from lightning_perf.probe.replay.messages import CURRENT, Setting, Task
from lightning_perf.probe.replay.rounds import BATCH_ROUNDS, MOST_ROUNDS, Rounds
from tests.probe.recorded import calls_of

Pair = tuple[float, float]


def made_up(*times_ns: int) -> OperatorCalls:
    whole = calls_of("convolutions")
    calls = tuple(replace(whole.calls[0], calls=1, forward_ns=each, backward_ns=0) for each in times_ns)
    return replace(whole, calls=calls, order=tuple(range(len(calls))))


def counted(
    monkeypatch: pytest.MonkeyPatch,
    calls: OperatorCalls,
    settings: tuple[Setting, ...],
    measure: Callable[[int, str, int], float],
    *,
    seconds: float = 60.0,
) -> dict[tuple[int, str], int]:
    """Return the rounds of each call in each setting.

    ``measure`` returns the time of a call in a setting, in the round with a number.
    """
    passes: dict[str, int] = {}

    def run_pass(chosen: Mapping[int, Any], setting: Setting, *_: object) -> tuple[dict[int, Pair], dict[int, str]]:
        number = passes[setting.name] = passes.get(setting.name, -1) + 1
        return {place: (measure(place, setting.name, number), 0.0) for place in chosen}, {}

    monkeypatch.setattr(rounds_module, "run_pass", run_pass)
    monkeypatch.setattr(rounds_module, "Prepared", lambda place, *_, **__: place + 1)
    task = Task(calls, b"", {}, settings, "cpu", 1, 6, seconds, 1 << 20)
    bound: list[Any] = [{setting.name: None for setting in settings} for _ in calls.calls]
    measured = Rounds(task, bound, {}, None, time.perf_counter() + seconds)
    measured.run()
    return {(one.call, one.setting): len(one.forward_ns) for one in measured.times()}


def test_a_clear_loss_is_measured_once_or_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = {"hopeless": 2.1, "slow": 1.3, "fast": 1.1}
    found = counted(
        monkeypatch,
        made_up(2_000_000, 1_000_000),
        (Setting(CURRENT), *map(Setting, ratios)),
        lambda _, setting, __: 100.0 * ratios.get(setting, 1.0),
    )
    rounds = {CURRENT: MOST_ROUNDS, "hopeless": 1, "slow": 2, "fast": MOST_ROUNDS}
    assert found == {(place, name): number for place in (0, 1) for name, number in rounds.items()}


@pytest.mark.parametrize(("slow_rounds", "slow_ns"), [(2, 150.0), (1, 900.0)], ids=["disturbed", "warming up"])
def test_a_setting_that_is_slow_at_first_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, slow_rounds: int, slow_ns: float
) -> None:
    found = counted(
        monkeypatch,
        made_up(2_000_000, 1_000_000),
        (Setting(CURRENT), Setting("slow")),
        lambda _, setting, number: slow_ns if setting == "slow" and number < slow_rounds else 100.0,
    )
    assert set(found.values()) == {MOST_ROUNDS}


def test_a_larger_batch_counts_per_sample_and_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted(
        monkeypatch,
        made_up(2_000_000),
        (Setting(CURRENT), Setting("batch", batch=2)),
        lambda _, setting, __: 200.0 if setting == "batch" else 100.0,
    )
    assert found == {(0, CURRENT): MOST_ROUNDS, (0, "batch"): BATCH_ROUNDS}


def test_a_larger_batch_is_left_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (Setting(CURRENT), Setting("bf16"), Setting("batch", batch=2))
    four = made_up(*[100_000_000] * 4)

    def settings_in(seconds: float) -> set[str]:
        return {name for _, name in counted(monkeypatch, four, settings, lambda *_: 1e8, seconds=seconds)}

    # A round takes 1.6 s with the larger batch, and 0.8 s without. Time for 3.6 rounds is needed.
    assert settings_in(8.0) == {CURRENT, "bf16", "batch"}
    assert settings_in(3.2) == {CURRENT, "bf16"}
