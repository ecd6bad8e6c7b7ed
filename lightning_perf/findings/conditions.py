"""Conditions under which a recording does not show the usual training: first steps, debug settings, busy cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import (
    HIGH_SHARE,
    MIN_SHARE,
    Finding,
    Problem,
    SavingRange,
    Severity,
    device_rule,
    rule,
)
from lightning_perf.findings.savings import each, step_ns
from lightning_perf.run_files.fit.gpu_health import TROUBLE, GpuHealth
from lightning_perf.trace.description import Processor
from lightning_perf.units import counted, format_duration, format_share

BUSY_LOAD = 1.5
"""Load per processor from which the machine counts as busy, if the load also exceeds the processors by one."""

BUSY_WAIT = 0.1
"""Share of its time that the training thread waits for a core, from which the machine counts as busy."""

THREADS_PER_CORE = 2
"""Logical processors per core, for recordings that know only the cores."""


def contention(processor: Processor | None) -> str:
    """Return a sentence about contention for the processor; empty without any, or if the recording does not say."""
    if processor is None:
        return ""
    if is_oversubscribed(processor):
        may_use = counted(_cpus(processor) or 0, "processor")
        return f"Oversubscribed: torch computes on {processor.threads:,} threads, and the process may use {may_use}."
    machine = processor.machine_cpus or processor.cpus or processor.cores
    loaded = ""
    if machine and processor.load is not None and processor.load >= max(BUSY_LOAD * machine, machine + 1):
        threads = f", and torch uses {counted(processor.threads, 'thread')}" if processor.threads else ""
        loaded = f"a load of {processor.load:.1f} on {counted(machine, 'processor')}{threads}"
    if processor.core_wait is not None and processor.core_wait >= BUSY_WAIT:
        waited = f"the training thread waited for a core for {format_share(processor.core_wait)} of the time"
        loaded = f"{waited} ({loaded})" if loaded else waited
    return f"The machine was busy during the recording: {loaded}." if loaded else ""


def is_busy(processor: Processor | None) -> bool:
    """Return whether there was contention for the processor."""
    return bool(contention(processor))


def free_cores(processor: Processor, workers: int) -> float | None:
    """Return the cores that other programs and the loader's workers leave to the training; None if unknown."""
    if processor.cores is None or processor.other_cpu is None:
        return None
    return max(0.0, processor.cores - processor.other_cpu - workers * (processor.worker_cpu or 0.0))


def is_oversubscribed(processor: Processor) -> bool:
    """Return whether torch computes on more threads than the process may use processors."""
    cpus = _cpus(processor)
    return cpus is not None and (processor.threads or 0) > cpus


def _cpus(processor: Processor) -> int | None:
    """Return the processors that the process may use."""
    if processor.cpus is not None:
        return processor.cpus
    return processor.cores * THREADS_PER_CORE if processor.cores else None


COLD = (
    "Estimated from the first steps. Kernels load and caches fill in them, so their shares do not hold for later steps."
)
BLOCKED = "Estimated with CUDA_LAUNCH_BLOCKING, under which each launch waits for its kernel."


def distortion(analysis: RankAnalysis) -> str:
    """Return why the recorded steps describe another training than the usual one; empty if they do not."""
    if is_cold(analysis):
        return COLD
    return BLOCKED if any(text.startswith("CUDA_LAUNCH_BLOCKING=") for text, _ in _variables(analysis)) else ""


COLD_LAUNCH_NS = 100_000
"""Mean idle time of the device per launch call from which kernels must be loading. A warm call takes 2 to 10 µs. A call
that waits for room in a full queue takes longer, but then the device works."""

COLD_STEP = 3.0
"""Ratio of a training's first step to the median of the next recorded ones from which it starts up in that step."""

LEAST_STEPS = 3
"""Complete recorded steps that are needed to tell a slow first step."""


def is_cold(analysis: RankAnalysis) -> bool:
    """Return whether launches are so slow that they must be loading kernels, or the training's first step is slow."""
    return _cold_launch_ns(analysis) > 0 or bool(_cold_step(analysis))


def _cold_launch_ns(analysis: RankAnalysis) -> float:
    """Return the idle time of the device per launch if it is so long that launches must be loading kernels; else 0.

    Graphs are left out: their calls take longer the more kernels they have, even if these are loaded.
    """
    launches = analysis.launches
    if launches is None:
        return 0.0
    graphs, graph_ns = (launches.graphs.calls, launches.graphs.call_ns) if launches.graphs else (0, 0)
    single = launches.calls - graphs
    launch_ns = min(launches.exposed_ns, launches.call_ns - graph_ns) / single if single > 0 else 0.0
    return launch_ns if launch_ns >= COLD_LAUNCH_NS else 0.0


def _cold_step(analysis: RankAnalysis) -> str:
    """Return a sentence about a slow first step of the training; empty if it was not recorded, or not slow."""
    steps = [step for step in analysis.breakdown.steps if step.complete]
    if not analysis.breakdown.marked or len(steps) < LEAST_STEPS or steps[0].number > 1:
        return ""
    first_ns, usual_ns = steps[0].wall_ns, median(step.wall_ns for step in steps[1:])
    if first_ns < COLD_STEP * usual_ns:
        return ""
    return (
        f"Step {steps[0].number} takes {format_duration(first_ns)}, the median of the other recorded steps "
        f"{format_duration(usual_ns)}."
    )


@rule("cold-start")
def cold_start(analysis: RankAnalysis) -> Problem | None:
    """Find recordings of the first steps, in which kernels load and cuDNN and cuBLAS initialize.

    No saving is estimated, since only a few steps are slow.
    """
    launch_ns, step = _cold_launch_ns(analysis), _cold_step(analysis)
    if not (launch_ns or step) or step_ns(analysis) <= 0:
        return None
    launch = f"The device idles {format_duration(launch_ns)} per launch on average." if launch_ns else ""
    return Problem(
        "Cold start: the recording covers the first steps, which are slower than later ones",
        [launch and f"{launch} Once its kernel is loaded, a launch takes 2 to 10 µs.", step],
        "Record later steps: PerfCallback(skip_first=20) in a fit of more steps than that, or with torch.profiler "
        "schedule(skip_first=20, …).",
        severity="high",
    )


STACK_NS = (100_000.0, 1_000_000.0)
"""Time to note the Python stack of one node of the graph, at least and at most. Measured on an EPYC: 250 µs below 5
frames, 480 µs below 20, 800 µs below 60."""

MOST_OF_FORWARD = 0.9
"""Share of the forward phase that stacks take at most."""


class _Variable(NamedTuple):
    """An environment variable for debugging: the values that turn it on (any but 0 if empty), and its cost."""

    values: tuple[str, ...]
    severity: Severity
    cost: str


VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": _Variable(
        (), "high", "Each launch waits for its kernel, so nothing is queued ahead and no other finding holds."
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _Variable((), "high", "Each tensor asks the driver for its memory."),
    "PYTORCH_NO_HIP_MEMORY_CACHING": _Variable((), "high", "Each tensor asks the driver for its memory."),
    "TORCH_DISTRIBUTED_DEBUG": _Variable(
        ("INFO", "DETAIL"), "moderate", "With DETAIL, each collective first compares its inputs between the ranks."
    ),
    "NCCL_DEBUG": _Variable(("INFO", "TRACE"), "low", "NCCL writes its decisions to the log, with TRACE each call."),
    "TORCH_SHOW_CPP_STACKTRACES": _Variable((), "low", "Each C++ error collects and names its stack."),
    "TORCH_CPP_LOG_LEVEL": _Variable(("INFO",), "low", "torch writes a line for each event of its C++ code."),
}
"""Environment variables for debugging that are often left on."""


@rule("debug-settings")
def debug_settings(analysis: RankAnalysis) -> Problem | None:
    """Find settings for debugging that are on: anomaly detection, by its checks in the trace, and variables."""
    variables = dict(_variables(analysis))
    anomaly = _anomaly(analysis)
    if not variables and anomaly is None:
        return None
    names = [*(["anomaly detection"] if anomaly else []), *variables]
    removed = f"Unset {', '.join(variables)}." if variables else ""
    off = "Turn anomaly detection off: Trainer(detect_anomaly=False), or remove torch.autograd.detect_anomaly()."
    severities = {"high"} if anomaly else {variable.severity for variable in variables.values()}
    return Problem(
        f"{'Debug settings are' if len(names) > 1 else 'A debug setting is'} on: {', '.join(names)}",
        [*([anomaly[0]] if anomaly else []), *(f"{name}: {one.cost}" for name, one in variables.items())],
        " ".join(part for part in (off if anomaly else "", removed) if part),
        anomaly[1] if anomaly else None,
        severity=next(level for level in ("high", "moderate", "low") if level in severities),
    )


def _variables(analysis: RankAnalysis) -> Iterator[tuple[str, _Variable]]:
    settings = analysis.metadata.settings
    for text in settings.variables if settings is not None else ():
        name, _, value = text.partition("=")
        known = VARIABLES.get(name)
        if known is not None and (value.upper() in known.values if known.values else value not in ("", "0")):
            yield text, known


def _anomaly(analysis: RankAnalysis) -> tuple[str, SavingRange | None] | None:
    """Return a sentence about anomaly detection, and its saving if the trace shows its checks; None if it is off."""
    checks, settings = analysis.anomaly_checks, analysis.metadata.settings
    if checks is None:
        if settings is None or not settings.detect_anomaly:
            return None
        return "Anomaly detection was on while the training was recorded.", None
    steps = max(checks.steps, 1)
    check_ns, nodes = checks.check_ns / steps, checks.nodes / steps
    forward_ns = MOST_OF_FORWARD * (analysis.phases.phase("forward").mean_ns or step_ns(analysis))
    low_ns, high_ns = (check_ns + min(nodes * stack_ns, forward_ns) for stack_ns in STACK_NS)
    text = (
        f"{counted(checks.checks / steps, 'tensor')} {each(analysis)} are checked for NaN in the backward pass, in "
        f"{format_duration(check_ns)}. The forward pass notes a Python stack for each of "
        f"{counted(nodes, 'node')} of the graph."
    )
    model = "The checks go away, and 0.1 to 1 ms per stack."
    return text, SavingRange((low_ns, high_ns), model)


LEAST_THROTTLED = 0.05
"""Share of the samples with a harmful reason from which a GPU counts as throttled."""

LEAST_WATCHED_S = 20.0
"""Shortest watch that is judged: ten samples."""

NAMED_GPUS = 4
"""Throttled GPUs with a sentence each."""

_COOLING = "Improve the cooling: check fans, dust, airflow and the temperature of the room."
_POWER_SUPPLY = "Check the power supply, its cables and the power brake of the server: nvidia-smi -q -d PERFORMANCE."
_THROTTLE_FIXES = dict(zip(TROUBLE.values(), (_POWER_SUPPLY, _COOLING, _COOLING, _POWER_SUPPLY), strict=True))
"""Fixes by reason. That of a low power limit has the default one in it."""


@device_rule("throttled")
def throttled(gpus: Sequence[GpuHealth]) -> Problem | None:
    """Find GPUs with low clocks for a reason that is trouble of the machine, or a power limit below the default.

    No saving is estimated: only work that the multiprocessors limit follows their clock.
    """
    known = [gpu for gpu in gpus if gpu.watched_s >= LEAST_WATCHED_S]
    found = [gpu for gpu in known if (gpu.throttled_share or 0.0) >= LEAST_THROTTLED and gpu.lost >= MIN_SHARE]
    if not found:
        return None
    found.sort(key=lambda gpu: -gpu.lost)
    worst = found[0]
    low = 1 - (worst.throttled_clock_mhz or 0.0) / (worst.clock_limit_mhz or 1.0)
    ranks = ", ".join(str(gpu.rank) for gpu in sorted(found, key=lambda gpu: gpu.rank))
    whose = f"GPUs of ranks {ranks}: the slowest" if len(found) > 1 else f"GPU of rank {ranks}: it"
    cause = next(reason.reason for reason in worst.reasons if reason.harmful)
    return Problem(
        f"Throttled {whose} runs {format_share(low)} below its clock limit for {format_share(worst.throttled_share)} "
        "of the time",
        (
            *(_throttling(gpu) for gpu in found[:NAMED_GPUS]),
            (
                "Kernels that wait for memory, and collectives, do not follow this clock. At most "
                f"{format_share(worst.lost)} of the time is lost."
            ),
        ),
        _THROTTLE_FIXES.get(
            cause,
            "Compare the power limit with the default: nvidia-smi -q -d POWER. To raise it: sudo nvidia-smi -pl "
            f"{worst.default_limit_w or 0.0:.0f}",
        ),
        severity="moderate" if worst.lost >= HIGH_SHARE else "low",
    )


_BESIDE = (("clock_mhz", "MHz under load"), ("temperature_c", "°C at most"), ("power_w", "W under load"))


def _others_on_gpu(gpus: Sequence[GpuHealth]) -> str:
    """Return a clause about other programs on the GPU with most of them; empty if none were seen."""
    gpu = max(gpus, key=lambda gpu: gpu.other_processes or 0, default=None)
    if gpu is None or not gpu.other_processes:
        return ""
    were = "was" if gpu.other_processes == 1 else "were"
    return f"{counted(gpu.other_processes, 'other process', 'other processes')} {were} on the GPU of rank {gpu.rank}"


def shared_gpu_notes(gpus: Sequence[GpuHealth]) -> list[str]:
    """Return a sentence about GPUs that other programs used as well; none without them."""
    others = _others_on_gpu(gpus)
    effect = "If they computed during the recording, kernels took longer, and some gaps between kernels are theirs"
    return [f"{others}. {effect}."] if others else []


def with_gpu_health(finding: Finding, gpus: Sequence[GpuHealth]) -> Finding:
    """Add facts about GPUs over the fit to the evidence: other programs to stalls, and the health to a straggler."""
    if finding.kind == "queued-stalls":
        others = _others_on_gpu([gpu for gpu in gpus if gpu.rank == (finding.rank or 0)])
        return replace(finding, evidence=(*finding.evidence, f"{others} during the training.")) if others else finding
    return _with_health_of_straggler(finding, gpus)


def _with_health_of_straggler(finding: Finding, gpus: Sequence[GpuHealth]) -> Finding:
    """Add the health of a straggler's GPU over the fit to its evidence, next to that of the others.

    Figures that are not known of both sides are left out. They do not say that the GPU is the cause.
    """
    known = [gpu for gpu in gpus if gpu.watched_s >= LEAST_WATCHED_S] if finding.kind == "straggler" else []
    own = next((gpu for gpu in known if gpu.rank == finding.rank), None)
    others = [gpu for gpu in known if gpu.rank != finding.rank]
    facts = []
    for name, unit in _BESIDE if own is not None else ():
        value, beside = getattr(own, name), [each for gpu in others if (each := getattr(gpu, name)) is not None]
        if value is not None and beside:
            facts.append(f"{value:,.0f} {unit} ({median(beside):,.0f})")
    shares = [gpu.throttled_share for gpu in others if gpu.throttled_share is not None]
    if own is not None and own.throttled_share is not None and any((own.throttled_share, *shares)) and shares:
        reason = next((f"{each.reason} in " for each in own.reasons if each.harmful), "throttled in ")
        facts.append(f"{reason}{format_share(own.throttled_share)} of the samples ({format_share(median(shares))})")
    if not facts:
        return finding
    whose = f"rank {others[0].rank}" if len(others) == 1 else "the median other rank"
    text = f"Its GPU over the fit, with that of {whose} in brackets: {', '.join(facts)}."
    return replace(finding, evidence=(*finding.evidence, text))


def _throttling(gpu: GpuHealth) -> str:
    """Return the reasons for the low clocks of a GPU, with its clock, temperature and power."""
    reasons = " and ".join(f"{each.reason}, in {format_share(each.share)}" for each in gpu.reasons if each.harmful)
    limit = "of a set clock of" if gpu.clock_is_set else "of at most"
    facts = [
        f"Their median clock is {gpu.throttled_clock_mhz or 0.0:,.0f} MHz {limit} {gpu.clock_limit_mhz or 0.0:,.0f} MHz"
    ]
    if gpu.temperature_c is not None:
        slows = f" (slowdown from {gpu.slowdown_c:.0f} °C)" if gpu.slowdown_c is not None else ""
        facts.append(f"at most {gpu.temperature_c:.0f} °C{slows}")
    if gpu.power_w is not None and gpu.power_limit_w is not None:
        default = f" (default {gpu.default_limit_w:.0f} W)" if gpu.default_limit_w is not None else ""
        facts.append(f"{gpu.power_w:.0f} W of a limit of {gpu.power_limit_w:.0f} W{default}")
    return f"Rank {gpu.rank} was {reasons} of the samples. {', '.join(facts)}."
