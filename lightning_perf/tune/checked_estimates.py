"""The predictions of a tuning, each next to the gain that the tuning measured."""

from __future__ import annotations

import math
import time

from lightning_perf.machine.environment import version_facts
from lightning_perf.run_files.estimates import EstimateOutcome
from lightning_perf.tune.levers.registry import find_lever
from lightning_perf.tune.result import Trial, TuneResult

_OTHER_PRECISION = {("cpu-bf16", "16-mixed")}
"""Rules and levers that address the same loss of time, but the estimate is for another lever of the family."""


def checked_estimates(result: TuneResult) -> tuple[EstimateOutcome, ...]:
    """Return the predictions that a tuning measured.

    If several levers of a family address a finding, e.g. different numbers of workers, the fastest one counts.
    """
    fastest: dict[tuple[str, str], Trial] = {}
    for trial in result.trials:
        if trial.rule is None or trial.predicted is None or trial.measured is None or trial.measured.value is None:
            continue
        if (trial.rule, trial.lever) in _OTHER_PRECISION:
            continue
        key = trial.rule, find_lever(trial.lever).family
        if key not in fastest or _ratio(trial) < _ratio(fastest[key]):
            fastest[key] = trial
    return tuple(_outcome(trial, result) for trial in fastest.values())


def _ratio(trial: Trial) -> float:
    value = trial.measured.value if trial.measured is not None else None
    return math.inf if value is None else value


def _outcome(trial: Trial, result: TuneResult) -> EstimateOutcome:
    low, high = sorted(trial.predicted or (1.0, 1.0))
    gain = None if trial.measured is None else trial.measured.map(lambda ratio: result.baseline_ms * (1 - ratio))
    return EstimateOutcome(
        rule=trial.rule or "",
        setting=trial.lever,
        step_ms=result.baseline_ms,
        low_ms=result.baseline_ms * (1 - high),
        high_ms=result.baseline_ms * (1 - low),
        source=trial.source or "general",
        gain_ms=(gain.value if gain is not None else None) or 0.0,
        gain_low_ms=gain.low if gain is not None else None,
        gain_high_ms=gain.high if gain is not None else None,
        method="tune",
        measurement=result.tuning,
        on_top_of=trial.on_top_of,
        network=result.network,
        machine=result.machine.name,
        versions={
            name.removeprefix("version."): str(value) for name, value in version_facts().items() if value is not None
        },
        measured_unix_s=time.time(),
    )
