"""Puts a step together again from recorded times and from the ratios that a probe measured (Amdahl, AFIPS 1967).

Only ratios come from the probe: the time of a call in another setting over its time in the current one. They scale the
recorded times. The step also has parts that no setting changes: host, input, communication and idle time.

Other programs and machines that share a processor make some rounds longer, and none shorter. So the lower quartile
stands for all rounds: it stays in place while less than three quarters of them are disturbed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import median, quantiles
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.analysis.host.launches import StepFloor
from lightning_perf.analysis.model.operators import OperatorCall, OperatorCalls
from lightning_perf.probe.replay.messages import CompiledTimes, GraphTimes, Times
from lightning_perf.run_files.probe import ProbedChange

DRAWS = 100
"""Draws of the bootstrap."""

NOISE_SDS = 2.0
"""Standard errors that count as noise, with many rounds. Few rounds do not show all of it."""

ONE_ROUND = 1.0
"""Deviation to assume for a single round."""


class Part(NamedTuple):
    """A part of the step: its recorded time, and its times in the probe in each round, in two settings."""

    recorded_ns: float
    before: Sequence[float]
    after: Sequence[float]

    @property
    def saving_ns(self) -> float:
        """Time per step that the other setting saves."""
        return self.recorded_ns * (1.0 - lower_quartile(self.after) / lower_quartile(self.before))


def lower_quartile(times: Sequence[float]) -> float:
    """Return the lower quartile of some times, interpolated; 0 without any."""
    if len(times) < 2:
        return times[0] if times else 0.0
    return quantiles(times, n=4, method="inclusive")[0]


def middle_half(times: Sequence[float]) -> tuple[float, float]:
    """Return both quartiles of at least two times, interpolated."""
    low, _, high = quantiles(times, n=4, method="inclusive")
    return low, high


def noise_ns(parts: Sequence[Part]) -> float:
    """Return the noise of the saving of some parts, on each side.

    Rounds are drawn with replacement (Efron, Annals of Statistics 7, 1979). A draw has the same rounds of all parts, so
    stretches in which the machine is slow do not count once for each part.

    Args:
        parts: Parts that were measured in the same rounds, up to the same last one. Earlier rounds that some parts lack
            are left out.
    """
    recorded_ns = np.array([part.recorded_ns for part in parts])
    rounds = min((len(times) for part in parts for times in (part.before, part.after)), default=0)
    if rounds < 2:
        return NOISE_SDS * ONE_ROUND * float(recorded_ns.sum())
    draws = np.random.default_rng(0).integers(0, rounds, (DRAWS, rounds))
    before, after = (
        np.quantile(np.array([times[-rounds:] for times in sides])[:, draws], 0.25, axis=-1)
        for sides in zip(*((part.before, part.after) for part in parts), strict=True)
    )
    return NOISE_SDS * rounds / (rounds - 1) * float(np.std(recorded_ns @ (after / np.maximum(before, 1.0))))


class Errors(NamedTuple):
    """The error of a probed saving, downwards and upwards: shares of the change, and of the measured time."""

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


class Saving(Struct, frozen=True):
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
            ratios.append(call.time_ns / call.calls / probed_ns)
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
    before = sum(calls.calls[place].time_ns for place in usual)
    shrunk = sum(call.time_ns for call in usual.values()) / before if before else 1.0
    others = calls.scaled(shrunk)
    return replace(others, calls=tuple(usual.get(place) or call for place, call in enumerate(others.calls)))


def usual_optimizer_ns(recorded_ns: float, probed_ns: Sequence[float], pace: float) -> float:
    """Return the time that an optimizer step usually takes: that of the recording, unless the probe shows much less."""
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
    similar_ns, similar_saving_ns, error_ns = _similar(calls, measured)
    savings = [*(saved for _, saved in measured.values()), similar_saving_ns]
    gains_ns = sum(saving for saving in savings if saving > 0)
    return Saving(
        saving_ns=sum(savings),
        noise_ns=math.hypot(noise_ns(parts), NOISE_SDS * error_ns),
        changed_ns=math.hypot(gains_ns, sum(savings) - gains_ns),
        measured_ns=measured_ns,
        similar_ns=similar_ns,
        other_ns=max(0.0, whole_ns - measured_ns - similar_ns),
        rounds=min(len(times) for part in parts for times in (part.before, part.after)),
    )


def first_settled_round(times: Sequence[Times]) -> int:
    """Return the first round of a setting that no longer warms up: it takes at most 1.05 times the median of its calls.

    The first rounds may meet fresh memory, and code that is not in the caches yet. At least two rounds remain.
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


def _similar(calls: OperatorCalls, measured: Mapping[int, tuple[float, float]]) -> tuple[float, float, float]:
    """Estimate calls by measured calls of the same operator, like the unsampled part of a ratio estimator.

    Returns:
        Their recorded time, their saving and its standard error, in nanoseconds.
    """
    sampled: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    left: defaultdict[str, list[float]] = defaultdict(list)
    for place, call in enumerate(calls.calls):
        if place in measured:
            sampled[call.name].append(measured[place])
        elif whole_ns := call.time_ns / calls.steps:
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
    return recorded_ns, float(saving_ns), variance**0.5


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


COMPILE_ERRORS = Errors(0.2, 0.2, 0.015)
"""Errors of the compiled calls: the compiler sees a guess of the data flow. Of the gains over 5 % of the step in
``benchmarks/results/compile_estimates.md``, four of five are inside the range with them."""


def estimate_compile(times: CompiledTimes, calls: OperatorCalls, python_ns: float) -> ProbedChange:
    """Estimate the saving of ``torch.compile``.

    The operators of the step change as the compiled calls did. At most, the Python between the operators of the forward
    pass is saved as well. At least, all of it stays, because the compiler adds checks of its own.
    """
    known_ns = calls.time_ns(times.places)
    part = Part(known_ns, times.eager_ns, times.compiled_ns)
    rounds = len(times.compiled_ns)
    saving = Saving(part.saving_ns, noise_ns([part]), abs(part.saving_ns), known_ns, 0.0, 0.0, rounds)
    low_ns, high_ns = widen(saving, COMPILE_ERRORS)
    return ProbedChange(
        name="compile",
        setting="torch.compile",
        saving_ns=saving.saving_ns + python_ns / 2,
        low_ns=low_ns,
        high_ns=high_ns + python_ns,
        noise_ns=saving.noise_ns,
        measured_ns=known_ns,
        rounds=rounds,
    )


GRAPH_ERROR = 0.2
"""Share by which a saving may be smaller. On the simulated device of the tests it was 0 to 15 % smaller."""

WAITS_OF_STEP = 0.5
"""Waits of the host for the device, per step, from which it counts as unable to get ahead."""


def estimate_graph(
    times: GraphTimes, calls: OperatorCalls, floor: StepFloor, step_ns: float, added_ns: float | None
) -> ProbedChange:
    """Estimate the saving of CUDA graphs of the model.

    The host takes next to no time for a graph and gets ahead of the device. A step then takes as long as the device
    works, or as long as the host needs outside of the model. At most, that is saved. A host that waits for the device
    in each step cannot get ahead: at least, the step then takes as long as both together. Long gaps of the device may
    stay, and a part of the model's calls outside of the graph. The replay also shows how much shorter the gaps between
    kernels are.

    Args:
        added_ns: Time that the profiler adds to a step; ``None`` if it is unknown. Then the least saving is at most the
            wait in the probe, which ran without the profiler and without the Python of a training.
    """
    usual_ns = step_ns - (added_ns or 0.0)
    most_ns = max(0.0, usual_ns - max(floor.outside_ns, floor.busy_ns))
    host_ns = floor.outside_ns + floor.long_ns
    kept_ns = max(host_ns, floor.busy_ns) if floor.waits_for_device < WAITS_OF_STEP else host_ns + floor.busy_ns
    least_ns = max(0.0, usual_ns - kept_ns)
    if added_ns is None:
        least_ns = min(least_ns, max(0.0, lower_quartile(times.launched_ns) - lower_quartile(times.queued_ns)))
    held = len(times.places) / len(calls.order)
    device_ns = calls.time_ns(times.places)
    part = Part(device_ns, times.queued_ns, times.replayed_ns)
    gaps_ns, noise = part.saving_ns, noise_ns([part])
    low_ns = (1.0 - GRAPH_ERROR) * held * least_ns + gaps_ns - noise
    high_ns = most_ns + gaps_ns + noise
    return ProbedChange(
        name="cuda-graph",
        setting="CUDA graphs",
        saving_ns=(low_ns + high_ns) / 2,
        low_ns=low_ns,
        high_ns=high_ns,
        noise_ns=noise,
        measured_ns=device_ns,
        rounds=len(times.replayed_ns),
    )
