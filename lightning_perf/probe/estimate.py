"""Puts a step together again from recorded times and from the ratios that a probe measured (Amdahl, AFIPS 1967).

Only ratios come from the probe: the time of a call in another setting over its time in the current one. They scale the
recorded times. The step also has parts that no setting changes: host, input, communication and idle time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.model.operator_calls import OperatorCalls
from lightning_perf.probe.messages import Times
from lightning_perf.trace.columns import Float64Array

__all__ = ["RELATIVE_ERROR", "STEP_ERROR", "Saving", "estimate_calls", "estimate_fixed", "widen"]

RELATIVE_ERROR = 0.15
"""Error of a probe, as a share of the change. Measured on the networks of ``benchmarks/plants.py``."""

STEP_ERROR = 0.01
"""Error of a probe, as a share of the measured operators' time. Measured on the same networks."""

NOISE_SDS = 2.0
"""Standard errors of the rounds' mean that count as noise."""


@dataclass(frozen=True)
class Saving:
    """An estimated saving in nanoseconds per step.

    Attributes:
        saving_ns: The estimate.
        noise_ns: Noise of the probe, on each side.
        changed_ns: Sum of all changes, gains and losses alike.
        measured_ns: Recorded time of the calls that were measured.
        other_ns: Recorded time of operators that were not measured.
        rounds: Rounds that each call was measured in.
    """

    saving_ns: float
    noise_ns: float
    changed_ns: float
    measured_ns: float
    other_ns: float
    rounds: int


def estimate_calls(calls: OperatorCalls, times: Sequence[Times], current: str, changed: str, batch: int = 1) -> Saving:
    """Estimate the saving of a setting for the operator calls.

    Args:
        calls: The recorded calls.
        times: The measured times.
        current: Name of the setting of the recording.
        changed: Name of the other setting.
        batch: Factor of its batch size. The saving is for as many samples as a step has now.

    Returns:
        The saving. All its fields are 0 if nothing was measured.
    """
    found = {(one.call, one.setting): one for one in times}
    parts: list[tuple[float, Float64Array, Float64Array]] = []
    measured_ns = 0.0
    for place, call in enumerate(calls.calls):
        before, after = found.get((place, current)), found.get((place, changed))
        if before is None or after is None:
            continue
        pairs = (
            (call.forward_ns, before.forward_ns, after.forward_ns),
            (call.backward_ns, before.backward_ns, after.backward_ns),
        )
        for recorded_ns, old, new in pairs:
            if recorded_ns and old and new and np.median(old) > 0:
                parts.append((recorded_ns / calls.steps, np.array(old), np.array(new) / batch))
                measured_ns += recorded_ns / calls.steps
    whole_ns = (sum(call.forward_ns + call.backward_ns for call in calls.calls) + calls.unmatched_ns) / calls.steps
    if not parts:
        return Saving(0.0, 0.0, 0.0, 0.0, whole_ns, 0)
    savings = [recorded * (1 - float(np.median(new)) / float(np.median(old))) for recorded, old, new in parts]
    rounds = min(min(len(old), len(new)) for _, old, new in parts)
    # Each round gives one ratio of the whole, in which slow stretches of the machine mostly cancel out.
    ratios = [
        sum(recorded * new[number] / np.median(old) for recorded, old, new in parts)
        / sum(recorded * old[number] / np.median(old) for recorded, old, new in parts)
        for number in range(rounds)
    ]
    spread = float(np.std(ratios, ddof=1)) / rounds**0.5 if rounds > 1 else 0.5
    return Saving(
        saving_ns=sum(savings),
        noise_ns=NOISE_SDS * spread * measured_ns,
        changed_ns=sum(map(abs, savings)),
        measured_ns=measured_ns,
        other_ns=max(0.0, whole_ns - measured_ns),
        rounds=rounds,
    )


def estimate_fixed(recorded_ns: float, times: Mapping[str, Sequence[float]], current: str, changed: str) -> Saving:
    """Estimate the saving of an optimizer step.

    Args:
        recorded_ns: Recorded time per step.
        times: Measured times of a step by implementation.
        current: The implementation of the recording.
        changed: The other one.
    """
    old, new = np.array(times.get(current, ())), np.array(times.get(changed, ()))
    rounds = min(len(old), len(new))
    if not rounds or np.median(old) <= 0:
        return Saving(0.0, 0.0, 0.0, 0.0, recorded_ns, 0)
    ratio = float(np.median(new) / np.median(old))
    ratios = new[:rounds] / old[:rounds]
    spread = float(np.std(ratios, ddof=1)) / rounds**0.5 if rounds > 1 else 0.5
    saving = recorded_ns * (1 - ratio)
    return Saving(saving, NOISE_SDS * spread * recorded_ns, abs(saving), recorded_ns, 0.0, rounds)


def widen(saving: Saving) -> tuple[float, float]:
    """Return the range of a saving: the noise of the probe, its error, and the operators that were not measured.

    Operators that were not measured stay as they are at one end. At the other end they change like those that were.
    """
    error = RELATIVE_ERROR * saving.changed_ns + STEP_ERROR * saving.measured_ns
    half = (error**2 + saving.noise_ns**2) ** 0.5
    rest = saving.saving_ns / saving.measured_ns * saving.other_ns if saving.measured_ns else 0.0
    return saving.saving_ns - half + min(0.0, rest), saving.saving_ns + half + max(0.0, rest)
