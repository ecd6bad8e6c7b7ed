"""`ScalingResult`: how a training scales with its devices, and the time that a step loses by which cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Literal, TypeAlias, get_args

import numpy as np
from msgspec import Struct

from lightning_perf.documents import Format, SavedDocument, TextDocument
from lightning_perf.report.document import PerfReport
from lightning_perf.show.blocks import Block, Cell, Code, Line, TableRow, listing, table
from lightning_perf.statistics.location import interval, mean_ratio, paired_difference
from lightning_perf.statistics.values import Estimate, Numbers
from lightning_perf.tune.errors import TrialError, TuneError
from lightning_perf.units import format_count, format_milliseconds, format_share, with_minus

SCHEMA_VERSION = 1

Device: TypeAlias = Literal["cpu", "gpu"]
CauseName: TypeAlias = Literal["input", "communication", "imbalance", "core wait", "host", "rest"]
CAUSES: tuple[CauseName, ...] = get_args(CauseName)

LABELS: Mapping[CauseName, str] = {
    "input": "waiting for batches",
    "communication": "communication, not hidden",
    "imbalance": "waiting for the slowest rank",
    "core wait": "waiting for a core",
    "host": "launches and host work",
    "rest": "the rest, e.g. computing",
}

WIDE = 2
"""An interval of the efficiency with ends that differ by a larger factor says nothing."""

HOST_CATEGORIES = ("kernel_launch", "runtime", "host_compute", "host_other")


class Cause(Struct, frozen=True):
    """A part of the lost time.

    Attributes:
        name: ``input``, ``communication``, ``imbalance``, ``core wait``, ``host`` or ``rest``.
        lost_ms: Time per step beyond that of the fewest devices, in milliseconds. None if it was not recorded: then
            it is part of the rest.
    """

    name: CauseName
    lost_ms: Estimate | None


class DeviceCount(Struct, frozen=True):
    """The training on one number of devices.

    Attributes:
        devices: Devices, with a process each.
        step_ms: Mean time of a step, in milliseconds.
        samples_per_s: Samples per second of all devices together; None if the batches do not show them.
        efficiency: Throughput per device, relative to that of the fewest devices.
        lost_ms: Time of a step beyond that of the fewest devices, in milliseconds. The causes sum to it.
        causes: Its parts; empty for the fewest devices.
        threads: Threads on which each process computes. None if unknown.
        core_wait_ms: Time per step for which the training thread was ready to run and had no core, in milliseconds, of
            the process that waited longest. None if the system does not count it.
    """

    devices: int
    step_ms: Estimate
    samples_per_s: float | None
    efficiency: Estimate
    lost_ms: Estimate
    causes: tuple[Cause, ...]
    threads: int | None
    core_wait_ms: float | None


class ScalingResult(TextDocument, SavedDocument, frozen=True):
    """How the speed of a training changes with the number of devices, by ``lightning-perf tune --devices``.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        tool_version: Version of lightning_perf.
        device: ``cpu`` or ``gpu``.
        device_name: Name of the first device. None if unknown.
        cores: Logical processors that all processes share.
        counts: The numbers of devices, the fewest first.
        seconds: Time that it took.
        versions: Versions of Python and of the installed libraries that affect speed.
        command: The command that repeats it.
        code: Revision and hash of the training's code.
        interrupted: Whether Ctrl-C ended it early.
    """

    schema_version: int
    tool_version: str
    device: Device
    device_name: str | None
    cores: int
    counts: tuple[DeviceCount, ...]
    seconds: float
    versions: dict[str, str]
    command: str
    code: str
    interrupted: bool

    _format = Format("scaling result", "scaling result", SCHEMA_VERSION, "measure again", TuneError)

    def blocks(self) -> Iterator[Block]:
        """Yield the outcome, the speed for each number of devices, and the lost time by cause."""
        return _blocks(self)


class Run(Struct, frozen=True):
    """One training on some devices.

    Attributes:
        parts_ns: Mean time of a step by cause. Those that were not recorded are not in it, nor is the rest.
        samples_per_s: Of all devices.
        core_wait_ns: The longest of all processes, per step.
        device_name: Name of one device; None if unknown.
    """

    step_ns: float
    parts_ns: Mapping[CauseName, float]
    samples_per_s: float | None
    threads: int | None
    core_wait_ns: float | None
    device: Device = "cpu"
    device_name: str | None = None


def account_for(report: PerfReport, devices: int) -> Run:
    """Divide the mean step of a run by cause, as one rank sees it: the one with the median exposed communication.

    Of two, it is the one with more, which mostly waits for the slowest rank.
    """
    times, fit = report.step_times, report.over_fit
    if times is None or (fit is None and devices > 1):
        raise TrialError("its steps were not timed")
    rank, communication_ns, imbalance_ns = _communication(report, devices)
    if fit is not None:
        step_ns, input_ns = fit.step_ns, next(each.input_ns for each in fit.ranks if each.rank == rank)
    elif times.device_mean_ns is not None:
        step_ns, input_ns = times.mean_ns, max(times.mean_ns - times.device_mean_ns, 0.0)
    else:
        step_ns, input_ns = times.mean_ns, times.data_wait_mean_ns
    analyses = {each.rank or 0: each for each in report.ranks}
    processors = {each: found for each in analyses if (found := analyses[each].metadata.processor) is not None}
    waits_ns = {each: step_ns * found.core_wait for each, found in processors.items() if found.core_wait is not None}
    longest_ns = max(waits_ns.values()) if len(waits_ns) == devices else None
    here, processor = analyses.get(rank), processors.get(rank)
    core_ns = host_ns = None
    device: Device = "cpu"
    device_name = None if processor is None else processor.name
    if here is not None and here.breakdown.has_device:
        device, device_name = "gpu", next(iter(here.workload.devices), None)
        host_ns = sum(row.mean_ns or 0.0 for row in here.breakdown.categories if row.name in HOST_CATEGORIES)
    elif longest_ns is not None:
        core_ns = waits_ns[rank]
        if communication_ns is not None and imbalance_ns is not None:
            # Other ranks may have waited for a core while this one waited for them. That much is the machine's fault.
            first_ns = min(communication_ns, longest_ns)
            second_ns = min(imbalance_ns, longest_ns - first_ns)
            communication_ns, imbalance_ns = communication_ns - first_ns, imbalance_ns - second_ns
            core_ns += first_ns + second_ns
    parts_ns = zip(CAUSES, (input_ns, communication_ns, imbalance_ns, core_ns, host_ns), strict=False)
    rate = times.samples_per_second
    return Run(
        step_ns,
        {name: part_ns for name, part_ns in parts_ns if part_ns is not None},
        None if rate is None else rate * devices,
        None if processor is None else processor.threads,
        longest_ns,
        device,
        device_name,
    )


def _communication(report: PerfReport, devices: int) -> tuple[int, float | None, float | None]:
    """Return the rank of the account, its exposed communication, and its wait for the slowest rank.

    Communication takes as long as for the rank that waits least, without its waits. The rest of the exposed time of
    another rank is waiting.
    """
    if devices == 1:
        return 0, 0.0, 0.0
    exposed_ns = {
        each.rank or 0: (found.exposed_ns + found.host_exposed_ns) / max(each.breakdown.averaged_steps, 1)
        for each in report.ranks
        if (found := each.communication) is not None
    }
    shares = () if report.distributed is None else report.distributed.ranks
    waits_ns = {each.rank: each.wait_ns for each in shares if each.wait_ns is not None}
    if not len(exposed_ns) == len(waits_ns) == devices:
        return 0, None, None
    rank = sorted(exposed_ns, key=lambda each: (exposed_ns[each], waits_ns[each]))[devices // 2]
    last = min(waits_ns, key=lambda each: waits_ns[each])
    transfer_ns = min(max(exposed_ns[last] - waits_ns[last], 0.0), exposed_ns[rank])
    return rank, transfer_ns, exposed_ns[rank] - transfer_ns


def compare_counts(blocks: Sequence[Mapping[int, Run]]) -> tuple[DeviceCount, ...]:
    """Compare each number of devices with the smallest one, block by block."""
    counts = sorted(blocks[0])
    base = [block[counts[0]] for block in blocks]
    return tuple(_count(devices, [block[devices] for block in blocks], base) for devices in counts)


def _count(devices: int, runs: Sequence[Run], base: Sequence[Run]) -> DeviceCount:
    steps_ns, base_ns = [run.step_ns for run in runs], [run.step_ns for run in base]
    lost_ns = left_ns = np.subtract(steps_ns, base_ns)
    causes = []
    for name in CAUSES[:-1] if runs != base else ():
        if all(name in run.parts_ns for run in (*runs, *base)):
            part_ns = np.subtract([run.parts_ns[name] for run in runs], [run.parts_ns[name] for run in base])
            left_ns = left_ns - part_ns
            causes.append(Cause(name, _mean_ms(part_ns)))
        else:
            causes.append(Cause(name, None))
    rates = [run.samples_per_s for run in runs if run.samples_per_s is not None]
    waits_ns = [run.core_wait_ns for run in runs if run.core_wait_ns is not None]
    return DeviceCount(
        devices=devices,
        step_ms=_mean_ms(steps_ns),
        samples_per_s=fmean(rates) if len(rates) == len(runs) else None,
        efficiency=mean_ratio(steps_ns, base_ns, paired=True),
        lost_ms=_mean_ms(lost_ns),
        causes=(*causes, Cause("rest", _mean_ms(left_ns))) if causes else (),
        threads=runs[0].threads,
        core_wait_ms=fmean(waits_ns) / 1e6 if len(waits_ns) == len(runs) else None,
    )


def _mean_ms(values_ns: Numbers) -> Estimate:
    return interval(paired_difference(np.zeros(len(values_ns)), np.asarray(values_ns) / 1e6))


def name_devices(count: int) -> str:
    """Return a number of devices in words."""
    return f"{count} device{'s' if count > 1 else ''}"


def _blocks(result: ScalingResult) -> Iterator[Block]:
    fewest, *others = result.counts
    base = name_devices(fewest.devices)
    for count in others:
        yield Line(_verdict(count, fewest.devices), "strong")
    yield table(
        ("devices", "samples/s", "step (ms)", "efficiency", "threads", "core wait"), map(_row, result.counts), "Speed"
    )
    heads = ("cause", *(name_devices(count.devices) for count in others))
    lost = [("all", *(_milliseconds(count.lost_ms) for count in others))]
    lost += [
        (LABELS[name], *(_milliseconds(count.causes[place].lost_ms) for count in others))
        for place, name in enumerate(CAUSES)
    ]
    yield table(heads, lost, f"Lost time per step in ms, against {base}")
    yield from listing(_footnotes(result), "quiet")
    yield Line("To repeat", "strong")
    yield Code((result.command,), "sh")


def _row(count: DeviceCount) -> TableRow:
    rate = count.samples_per_s
    return (
        str(count.devices),
        Cell(format_count(None if rate is None else round(rate)), rate),
        _milliseconds(count.step_ms),
        _efficiency(count),
        format_count(count.threads),
        format_milliseconds(count.core_wait_ms),
    )


def _verdict(count: DeviceCount, fewest: int) -> str:
    """Return the efficiency in a sentence, or that the blocks are too different to say it."""
    low, value, high = count.efficiency.low, count.efficiency.value, count.efficiency.high
    if value is None or low is None or high is None or high > WIDE * low:
        found = f"The efficiency of {name_devices(count.devices)} is not certain, {_efficiency(count)}"
        return f"{found}: measure more blocks, on a machine without other work."
    return (
        f"{name_devices(count.devices)} train {value * count.devices / fewest:.2f} times as many samples per second as "
        f"{name_devices(fewest)}: an efficiency of {_efficiency(count)}."
    )


def _efficiency(count: DeviceCount) -> str:
    ratio = count.efficiency
    ends = "" if ratio.low is None or ratio.high is None else f" ({100 * ratio.low:.0f} to {100 * ratio.high:.0f})"
    return f"{format_share(ratio.value)}{ends}"


def _milliseconds(estimate: Estimate | None) -> str:
    """Return a time in milliseconds with its interval."""
    if estimate is None or estimate.value is None:
        return "not recorded"
    largest = max(abs(value) for value in (estimate.value, estimate.low, estimate.high) if value is not None)
    digits = 0 if largest >= 100 else 1 if largest >= 10 else 2
    first, *ends = (
        with_minus(f"{value:.{digits}f}")
        for value in (estimate.value, estimate.low, estimate.high)
        if value is not None
    )
    return first + (f" ({' to '.join(ends)})" if ends else "")


def _footnotes(result: ScalingResult) -> Iterator[str]:
    most = result.counts[-1]
    yield (
        "Each device has the batch size of the script, so more devices train on more samples per step (weak scaling). "
        "Efficiency is the throughput per device."
    )
    if result.device == "cpu":
        yield (
            f"The {most.devices} processes share {result.cores} logical processors, so steps can take longer "
            "without any communication. Launches are part of computing."
        )
        yield (
            "Waiting for a core includes the waits for another rank that it may explain, so communication and the wait "
            "for the slowest rank take at least the times shown."
        )
    yield (
        f"Means with 95 % intervals, of {most.step_ms.n} blocks with a fresh training on each number of devices. "
        f"Took {result.seconds / 60:.1f} minutes on {result.device_name or 'an unknown device'}."
    )
