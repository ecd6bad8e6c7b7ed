from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.findings.cpu import cpu_pauses
from lightning_perf.trace.metadata import LOOP_KEY
from tests.findings.host_recordings import on_processor
from tests.findings.recordings import analysis
from tests.support.trace_builder import TraceBuilder

STEP_US = 100_000


def pausing(
    phase: str = "forward",
    pause_us: float = 30_000,
    *,
    pauses_us: tuple[float, ...] = (),
    function: str = "",
    **top: Any,
) -> TraceBuilder:
    """Steps of 100 ms: operators of 34 ms in forward and backward each, and a pause in one phase of each step."""
    builder = on_processor(**top)
    for number, start in enumerate(builder.steps(len(pauses_us) or 5, STEP_US)):
        paused = pauses_us[number] if pauses_us else pause_us
        now = float(start)
        for name, operators_us in (("transfer", 0), ("forward", 34_000), ("backward", 34_000), ("optimizer", 500)):
            length = operators_us + (paused if name == phase else 0)
            if length:
                builder.annotation(f"perf::{name}", now, length)
            if function and name == phase:
                builder.host("python_function", "train.py(1): main", start, STEP_US)
                builder.host("python_function", function, now, length)
                builder.host("python_function", "<built-in function sleep>", now, paused)
            now += length - operators_us
            for _ in range(int(operators_us / 500)):
                builder.op("aten::mm", now, 500)
                now += 500
        if phase == "other":
            now += paused
        builder.op("aten::add", now, start + STEP_US - now)  # whatever else the step has is operators
    return builder


def loop(hooks: dict[str, int] | None, loggers: tuple[str, ...] = (), every: int = 1) -> dict[str, Any]:
    """The facts that `PerfCallback` notes about the loop, with the time of each hook in µs per step."""
    times = None if hooks is None else {name: 5 * 1000 * us for name, us in hooks.items()}
    return {LOOP_KEY: {"steps": 5, "hooks_ns": times, "loggers": list(loggers), "log_every_n_steps": every}}


def test_a_pause_in_forward() -> None:
    finding = cpu_pauses(analysis(pausing()))
    assert finding is not None
    assert finding.title == "Pauses: 30.0 ms per step outside operators in forward"
    assert finding.evidence[0].startswith("The training thread runs no operator for 30.0 % of the step")
    assert (finding.saving_low_ms, finding.saving_high_ms) == (15, 30)
    assert finding.severity == "high"
    assert "training_step" in finding.action
    assert "with_stack=True" in finding.action


@pytest.mark.parametrize(
    ("phase", "place"),
    [("transfer", "while a batch is moved"), ("backward", "in backward"), ("optimizer", "in the optimizer step")],
)
def test_the_phase_is_named(phase: str, place: str) -> None:
    finding = cpu_pauses(analysis(pausing(phase)))
    assert finding is not None
    assert finding.title.endswith(place)


@pytest.mark.parametrize(("pause_us", "fires"), [(4_900, False), (5_100, True)])
def test_from_5_percent_of_the_step_on(pause_us: float, fires: bool) -> None:
    assert (cpu_pauses(analysis(pausing(pause_us=pause_us))) is not None) == fires


def test_the_median_step_decides_and_on_a_busy_machine_the_shortest() -> None:
    once = (0, 0, 90, 20_000, 25_000)
    assert cpu_pauses(analysis(pausing(pauses_us=once))) is None
    mostly = (0, 20_000, 22_000, 24_000, 20_000)
    finding = cpu_pauses(analysis(pausing(pauses_us=mostly)))
    assert finding is not None
    assert finding.saving_high_ms == pytest.approx(20)
    assert cpu_pauses(analysis(pausing(pauses_us=mostly, load=30.0))) is None
    always = cpu_pauses(analysis(pausing(pauses_us=(20_000, 30_000, 30_000, 30_000, 30_000), load=30.0)))
    assert always is not None
    assert always.saving_high_ms == pytest.approx(20)


def test_short_gaps_between_operators_are_no_pauses() -> None:
    builder = on_processor()
    for start in builder.steps(4, 10_000):
        builder.annotation("perf::forward", start, 10_000)
        for number in range(10):
            builder.op("aten::mm", start + 1000 * number, 100)  # and 900 µs of Python
    assert cpu_pauses(analysis(builder)) is None


def test_the_hook_with_the_time_is_named() -> None:
    hooks = {"Early.on_train_batch_start": 1_000, "Slow.on_train_batch_end": 29_000, "Net.training_step": 70_000}
    finding = cpu_pauses(analysis(pausing("other", **loop(hooks))))
    assert finding is not None
    assert finding.title.endswith("between batches, in Slow.on_train_batch_end")
    assert "Slow.on_train_batch_end takes 29.0 ms per step." in finding.evidence
    # A hook of another phase is not the cause, however long it takes.
    elsewhere = cpu_pauses(analysis(pausing("transfer", **loop(hooks))))
    assert elsewhere is not None
    assert elsewhere.title.endswith("while a batch is moved")


def test_optimizer_step_of_the_module_is_named_as_such() -> None:
    finding = cpu_pauses(analysis(pausing("other", **loop({"Net.optimizer_step": 30_000}))))
    assert finding is not None
    assert finding.title.endswith("in the optimizer step, in Net.optimizer_step")


@pytest.mark.parametrize(("every", "named"), [(1, True), (10, False)])
def test_the_logger_is_named_if_no_hook_takes_the_time_and_it_logs_in_every_step(every: int, named: bool) -> None:
    facts = loop({"Quick.on_train_batch_end": 40}, ("CSVLogger",), every)
    finding = cpu_pauses(analysis(pausing("other", **facts)))
    assert finding is not None
    assert finding.title.endswith("in the logger CSVLogger") == named
    assert ("Trainer(log_every_n_steps=50)" in finding.action) == named
    # Hooks that were not timed, as with a profiler of the user's own, exclude nothing.
    untimed = cpu_pauses(analysis(pausing("other", **loop(None, ("CSVLogger",)))))
    assert untimed is not None
    assert "CSVLogger" not in untimed.title


def test_stacks_name_the_user_s_function_and_its_line() -> None:
    finding = cpu_pauses(analysis(pausing(function="train.py(20): training_step", with_stack=1)))
    assert finding is not None
    assert finding.title.endswith("in forward, in training_step (train.py:20)")
    assert "with_stack" not in finding.action


def test_others_recordings_and_devices() -> None:
    assert cpu_pauses(analysis(pausing(trains=False))) is None
    several = pausing("backward").rank(0, 2, backend="gloo")  # it may wait for the other rank
    assert cpu_pauses(analysis(several)) is None
    assert cpu_pauses(analysis(pausing("forward").rank(0, 2, backend="gloo"))) is not None
    foreign = pausing()
    for event in foreign.events:
        event["name"] = event["name"].replace("perf::", "mine::")
    assert cpu_pauses(analysis(foreign)) is None


def test_the_operators_around_a_pause_are_its_place() -> None:
    finding = cpu_pauses(analysis(pausing("optimizer")))
    assert finding is not None
    assert "callbacks: most of the time is after aten::mm and before aten::mm." in finding.action
    assert finding.action.endswith("record with PerfCallback(with_stack=True).")
