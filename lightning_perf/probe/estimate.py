"""Puts a step together again from recorded times and from the ratios that a probe measured (Amdahl, AFIPS 1967).

Only ratios come from the probe: the time of a call in another setting over its time in the current one. They scale the
recorded times. The step also has parts that no setting changes: host, input, communication and idle time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from lightning_perf.analysis.model.operator_calls import OperatorCall, OperatorCalls
from lightning_perf.probe.noise import NOISE_SDS, Part, lower_quartile, noise_ns
from lightning_perf.probe.replay.messages import Times


class Errors(NamedTuple):
    """The error of a probed saving.

    Attributes:
        down: Downwards, as a share of the change.
        up: Upwards, as a share of the change.
        of_time: On both sides, as a share of the measured time.
    """

    down: float
    up: float
    of_time: float


OPERATOR_ERRORS = Errors(0.07, 0.13, 0.0125)
"""Errors of a probe of precision, layout or threads. They come from 48 probes of the first 24 networks in
``benchmarks/results/estimates.md``. Half of the gains were 1 % smaller to 11 % larger than probed. Those of channels
last were up to 31 % larger."""

BATCH_ERRORS = Errors(0.08, 0.15, 0.02)
"""Errors of a probe of a larger batch, which changes every tensor. There, 80 % of the gains were 9 % smaller to 29 %
larger than probed, most of them gains of 8 to 20 % of the step."""

OPTIMIZER_ERRORS = Errors(0.15, 0.35, 0.05)
"""Errors of a probe of an optimizer. Its temporaries also take caches and fresh memory from the rest of the step.
There, 80 % of the gains were 41 % smaller to 19 % larger than probed, and 26 % smaller to 40 % larger in single
processes. Most of these gains are 4 to 10 % of the step."""

FAULTS_ERROR = 0.5
"""Error by page faults that the probe lacks, as a share of their cost, on both sides. For RepVGG and an LSTM, with 12 %
and 29 % of the step in such faults, gains were up to 16 points above and 9 points below those probed."""

SLOWER = 1.1
"""Ratio to the pace of the recording from which the time of a recorded call counts as unusual."""

SETTLED, LEAST_SETTLED = 1.05, 2
"""Times of the median from which a first round counts as warm-up, and rounds that remain at least."""

LEAST_SIMILAR = 4
"""Measured calls of an operator from which they stand for its other calls."""


@dataclass(frozen=True)
class Saving:
    """An estimated saving in nanoseconds per step.

    Attributes:
        noise_ns: Noise of the probe, on each side.
        changed_ns: Root of the squares of all gains and of all losses. Their errors are independent.
        measured_ns: Recorded time of the calls that were measured.
        similar_ns: Recorded time of further calls of the same operators, if enough were measured.
        other_ns: Recorded time of all other operators.
        rounds: Rounds that each call was measured in.
    """

    saving_ns: float
    noise_ns: float
    changed_ns: float
    measured_ns: float
    similar_ns: float
    other_ns: float
    rounds: int


def pace_of_recording(calls: OperatorCalls, times: Sequence[Times], current: str) -> float:
    """Return how much longer calls took in the recording than in the probe: the median over the time of the step."""
    found = {one.call: one for one in times if one.setting == current}
    ratios, weights = [], []
    for place, call in enumerate(calls.calls):
        if place not in found:
            continue
        probed_ns = lower_quartile(found[place].forward_ns) + lower_quartile(found[place].backward_ns)
        if probed_ns > 0:
            recorded_ns = call.forward_ns + call.backward_ns
            ratios.append(recorded_ns / call.calls / probed_ns)
            weights.append(probed_ns * call.calls)
    if not ratios:
        return 1.0
    order = np.argsort(ratios)
    half = np.searchsorted(np.cumsum(np.array(weights)[order]), sum(weights) / 2)
    return float(np.array(ratios)[order][half])


def usual_calls(calls: OperatorCalls, times: Sequence[Times], current: str) -> OperatorCalls:
    """Return the calls with the times that they usually have.

    Recorded steps have pauses and fresh memory that other steps do not have. Calls that took much longer than in the
    probe, by the pace of the recording, get the time of the probe at that pace. Calls that were not measured shrink
    like those that were.
    """
    pace = pace_of_recording(calls, times, current)
    found = {one.call: one for one in times if one.setting == current}
    usual: dict[int, OperatorCall] = {}
    for place, one in found.items():
        call = calls.calls[place]
        forward_ns, backward_ns = (
            min(recorded_ns, round(SLOWER * pace * lower_quartile(probed) * call.calls)) if probed else recorded_ns
            for recorded_ns, probed in ((call.forward_ns, one.forward_ns), (call.backward_ns, one.backward_ns))
        )
        usual[place] = replace(call, forward_ns=forward_ns, backward_ns=backward_ns)
    before = sum(_whole_ns(calls.calls[place]) for place in usual)
    shrunk = sum(map(_whole_ns, usual.values())) / before if before else 1.0
    others = calls.scaled(shrunk)
    return replace(others, calls=tuple(usual.get(place) or call for place, call in enumerate(others.calls)))


def usual_optimizer_ns(recorded_ns: float, probed_ns: Sequence[float], pace: float) -> float:
    """Return the time that an optimizer step usually takes: that of the recording, unless the probe shows much less.

    Args:
        probed_ns: Times of the same step in the probe, one per step.
    """
    usual_ns = pace * lower_quartile(probed_ns)
    return usual_ns if probed_ns and recorded_ns > SLOWER * usual_ns else recorded_ns


class StepParts(NamedTuple):
    """The parts of a step that a probe changes: the operator calls, and the time of the optimizer."""

    calls: OperatorCalls
    optimizer_ns: float

    @property
    def sum_ns(self) -> float:
        """Time of both per step."""
        return self.calls.step_ns + self.optimizer_ns


def fit_into_step(recorded: StepParts, usual: StepParts, gaps_ns: float, step_ns: float) -> StepParts:
    """Return the parts with times that fit into a step without the profiler.

    A part that the probe ran faster may have had a reason in the training that the probe lacks. So the parts get as
    much of their recorded times as the step has room for. If even their usual times are too long, they are shortened
    alike. The profiler lengthens some parts of a step, and recorded steps may be slow ones.

    Args:
        step_ns: Time of a step without the profiler.
    """
    room_ns, missing_ns = step_ns - gaps_ns - usual.sum_ns, recorded.sum_ns - usual.sum_ns
    if room_ns <= 0:
        share = min(1.0, step_ns / max(1.0, usual.sum_ns))
        return StepParts(usual.calls.scaled(share), share * usual.optimizer_ns)
    if missing_ns <= 0:
        return usual
    share = min(1.0, room_ns / missing_ns)
    optimizer_ns = usual.optimizer_ns + share * (recorded.optimizer_ns - usual.optimizer_ns)
    return StepParts(_between(usual.calls, recorded.calls, share), optimizer_ns)


def _between(first: OperatorCalls, last: OperatorCalls, share: float) -> OperatorCalls:
    """Return the calls with times between those of two others; a share of 1 gives the last."""

    def time_ns(a: int, b: int) -> int:
        return round(a + share * (b - a))

    calls = tuple(
        replace(a, forward_ns=time_ns(a.forward_ns, b.forward_ns), backward_ns=time_ns(a.backward_ns, b.backward_ns))
        for a, b in zip(first.calls, last.calls, strict=True)
    )
    return replace(first, calls=calls, unmatched_ns=time_ns(first.unmatched_ns, last.unmatched_ns))


def _whole_ns(call: OperatorCall) -> int:
    return call.forward_ns + call.backward_ns


def estimate_calls(calls: OperatorCalls, times: Sequence[Times], current: str, changed: str, batch: int = 1) -> Saving:
    """Estimate the saving of a setting for the operator calls."""
    found = {name: {one.call: one for one in times if one.setting == name} for name in (current, changed)}
    settled = max(first_settled_round(list(of_setting.values())) for of_setting in found.values())
    parts: list[Part] = []
    measured: dict[int, tuple[float, float]] = {}
    for place, call in enumerate(calls.calls):
        if place not in found[current] or place not in found[changed]:
            continue
        before, after = _same_rounds(found[current][place], found[changed][place], settled)
        pairs = (
            (call.forward_ns, before.forward_ns, after.forward_ns),
            (call.backward_ns, before.backward_ns, after.backward_ns),
        )
        passes = [
            Part(recorded_ns / calls.steps, old, [time_ns / batch for time_ns in new])
            for recorded_ns, old, new in pairs
            if recorded_ns and new and lower_quartile(old) > 0
        ]
        if passes:
            parts += passes
            measured[place] = sum(part.recorded_ns for part in passes), sum(part.saving_ns for part in passes)
    whole_ns = calls.step_ns
    if not parts:
        return Saving(0.0, 0.0, 0.0, 0.0, 0.0, whole_ns, 0)
    measured_ns = sum(recorded for recorded, _ in measured.values())
    similar = _similar(calls, measured)
    return Saving(
        saving_ns=sum(saved for _, saved in measured.values()) + similar.saving_ns,
        noise_ns=math.hypot(noise_ns(parts), NOISE_SDS * similar.error_ns),
        changed_ns=_changed_ns([saved for _, saved in measured.values()] + [similar.saving_ns]),
        measured_ns=measured_ns,
        similar_ns=similar.recorded_ns,
        other_ns=max(0.0, whole_ns - measured_ns - similar.recorded_ns),
        rounds=min(len(times) for part in parts for times in (part.before, part.after)),
    )


def first_settled_round(times: Sequence[Times]) -> int:
    """Return the first round of a setting that no longer warms up.

    The first rounds of a setting may meet fresh memory, and code that is not in the caches yet.

    Returns:
        The first round that takes at most 1.05 times the median of its calls, but at least two rounds remain; 0 without
        any times.
    """
    numbers = sorted({one.first_round + at for one in times for at in range(len(one.forward_ns))})
    usual = [(one, median(_call_ns(one))) for one in times if one.forward_ns]
    last = max(0, len(numbers) - LEAST_SETTLED)
    for number in numbers[:last]:
        present = [(one, usual_ns) for one, usual_ns in usual if 0 <= number - one.first_round < len(one.forward_ns)]
        taken_ns = sum(_call_ns(one)[number - one.first_round] for one, _ in present)
        if taken_ns <= SETTLED * sum(usual_ns for _, usual_ns in present):
            return number
    return numbers[last] if numbers else 0


def _call_ns(times: Times) -> list[float]:
    """Return the time of a call in each round, forward and backward."""
    return [sum(pair) for pair in zip_longest(times.forward_ns, times.backward_ns, fillvalue=0.0)]


def _same_rounds(before: Times, after: Times, settled: int) -> tuple[Times, Times]:
    """Return the times of one call in two settings for the rounds that both have, from a round on if enough remain."""
    first = max(before.first_round, after.first_round)
    end = min(one.first_round + len(one.forward_ns) for one in (before, after))
    if end - max(first, settled) >= LEAST_SETTLED:
        first = max(first, settled)

    def cut(one: Times) -> Times:
        rounds = slice(first - one.first_round, end - one.first_round)
        return msgspec.structs.replace(
            one, forward_ns=one.forward_ns[rounds], backward_ns=one.backward_ns[rounds], first_round=first
        )

    return cut(before), cut(after)


def _changed_ns(savings: Sequence[float]) -> float:
    gains = sum(saving for saving in savings if saving > 0)
    return math.hypot(gains, sum(savings) - gains)


class _Similar(NamedTuple):
    """Time and saving of calls that others of the same operator stand for, and the standard error of the saving."""

    recorded_ns: float
    saving_ns: float
    error_ns: float


def _similar(calls: OperatorCalls, measured: Mapping[int, tuple[float, float]]) -> _Similar:
    """Estimate calls by other calls of the same operator, like the unsampled part of a ratio estimator.

    Args:
        measured: Time and saving per step of the calls that were measured, by their places.
    """
    sampled: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    left: defaultdict[str, list[float]] = defaultdict(list)
    for place, call in enumerate(calls.calls):
        if place in measured:
            sampled[call.name].append(measured[place])
        elif whole_ns := _whole_ns(call) / calls.steps:
            left[call.name].append(whole_ns)
    recorded_ns = saving_ns = variance = 0.0
    for name, times_ns in left.items():
        known = sampled.get(name, ())
        if len(known) < LEAST_SIMILAR:
            continue
        times, savings = np.array(known).T
        share = savings.sum() / times.sum()
        spread = float(np.average((savings / times - share) ** 2, weights=times)) * len(known) / (len(known) - 1)
        recorded_ns += sum(times_ns)
        saving_ns += share * sum(times_ns)
        variance += spread * (sum(times_ns) ** 2 / len(known) + sum(time_ns**2 for time_ns in times_ns))
    return _Similar(recorded_ns, float(saving_ns), variance**0.5)


def estimate_fixed(recorded_ns: float, times: Mapping[str, Sequence[float]], current: str, changed: str) -> Saving:
    """Estimate the saving of an optimizer step."""
    part = Part(recorded_ns, times.get(current, ()), times.get(changed, ()))
    rounds = min(len(part.before), len(part.after))
    if not rounds or lower_quartile(part.before) <= 0:
        return Saving(0.0, 0.0, 0.0, 0.0, 0.0, recorded_ns, 0)
    saving_ns = part.saving_ns
    return Saving(saving_ns, noise_ns([part]), abs(saving_ns), recorded_ns, 0.0, 0.0, rounds)


def widen(saving: Saving, errors: Errors, faults_ns: float = 0.0) -> tuple[float, float]:
    """Return the range of a saving: the noise of the probe, its error, and the operators that were not measured.

    Operators that were not measured stay as they are at one end. At the other end they change like those that were.
    Page faults that the probe lacks depend on the places of blocks in memory. A change of the training moves the
    blocks, so there may be fewer or more of them.
    """
    known_ns = saving.measured_ns + saving.similar_ns
    down, up = (
        math.hypot(error * saving.changed_ns + errors.of_time * known_ns, saving.noise_ns, FAULTS_ERROR * faults_ns)
        for error in (errors.down, errors.up)
    )
    rest = saving.saving_ns / known_ns * saving.other_ns if known_ns else 0.0
    return saving.saving_ns - down + min(0.0, rest), saving.saving_ns + up + max(0.0, rest)
