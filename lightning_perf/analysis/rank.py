"""The analyses of one rank: everything that its trace shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct, field

from lightning_perf.analysis.compilation import CompiledCalls, compiled_calls
from lightning_perf.analysis.host.host_compute import HostCompute, host_compute
from lightning_perf.analysis.host.launches import ClockSkew, HostPace, Launches, clock_skew, host_pace, launches
from lightning_perf.analysis.host.loading import Loading, loading
from lightning_perf.analysis.host.waits import Pauses, StopFlags, SyncPoints, pauses, stop_flags, sync_points
from lightning_perf.analysis.intervals import without_tails
from lightning_perf.analysis.kernels.arithmetic import Arithmetic, arithmetic
from lightning_perf.analysis.kernels.efficiency import Efficiency, HardwareCounters, efficiency, hardware_counters
from lightning_perf.analysis.kernels.kernel_table import GraphRegionTable, KernelTable, graph_regions, kernels
from lightning_perf.analysis.model.attention import Attention, LanguageModel, attention, language_model
from lightning_perf.analysis.model.memory import Memory, memory
from lightning_perf.analysis.model.modules import CallTree, ModuleTree, call_tree, modules
from lightning_perf.analysis.model.operators import OperatorTable, operators
from lightning_perf.analysis.model.timeline import Timeline, timeline
from lightning_perf.analysis.model.workload import (
    AnomalyChecks,
    OptimizerSteps,
    Recompute,
    Workload,
    anomaly_checks,
    optimizer_steps,
    recompute,
    repeated_operators,
    workload,
)
from lightning_perf.analysis.precision.amp_gain import AmpGain, AutocastTax, amp_gain, autocast_tax
from lightning_perf.analysis.ranks.communication import Communication, Wrapper, communication, wrappers
from lightning_perf.analysis.ranks.distributed import LinkUse
from lightning_perf.analysis.steps.breakdown import Breakdown, breakdown
from lightning_perf.analysis.steps.idle import Idle, idle
from lightning_perf.analysis.steps.phases import Phases, phases
from lightning_perf.analysis.steps.step_times import UsualStep
from lightning_perf.run_files.fit.memory_growth import WorkerGrowth
from lightning_perf.run_files.probe import Probe
from lightning_perf.trace.description import Metadata, Problems
from lightning_perf.trace.on_disk import release_columns
from lightning_perf.trace.trace import Trace

_Section = TypeVar("_Section")


class SourceClock(Struct, frozen=True):
    """The clock of one file of `RankAnalysis.sources`. Perfetto shows the times of the file.

    Attributes:
        start_ns: The file's first event, from the start of the recording.
        file_ns: Time of that event in the file.
        clock_ns: Time of that event on the clock of the machine. Only times of one machine, or of machines with
            synchronized clocks, can be compared.
    """

    start_ns: int
    file_ns: int
    clock_ns: int


class RankAnalysis(Struct, frozen=True):
    """The analyses of one rank. A section that the recording cannot support is ``None``.

    Attributes:
        rank: The rank; ``None`` if neither the recording nor its file name gives it.
        sources: The files it was read from.
        metadata: The recording's description of itself.
        problems: Faults of its files.
        recording_ns: Time from the first event to the end of the last.
        breakdown: Step time by category.
        phases: Step time by phase and category.
        arithmetic: Device compute time by arithmetic.
        autocast: The cost of casts.
        efficiency: How well devices were used; ``None`` without a device.
        launches: The cost of launching work.
        idle: The device's idle time, by cause.
        sync_points: Places where the host waits for a device.
        loading: How batches are fetched and moved.
        optimizer: The cost of optimizer steps.
        operators: Operators by cost.
        kernels: Device work by cost.
        modules: Modules of the model by cost.
        memory: Memory over time, and its use.
        communication: Collectives, and how much compute overlaps them.
        link: The use of the link between the devices; ``None`` without collectives of known sizes on the device.
        wrappers: Parallel wrappers that the model ran in.
        amp_gain: The predicted gain of mixed precision; ``None`` if it is in use already.
        stop_flags: Lightning's broadcasts of a stop flag; ``None`` without any.
        host_compute: The work of the processor; ``None`` for a training on a device.
        pauses: Long stretches without operators, by phase.
        clock_skew: How far the clocks of host and device disagree; ``None`` if nothing shows that they do.
        host_pace: The host's own time per step; ``None`` without a device.
        graph_regions: Named regions of CUDA graphs; ``None`` without names.
        counters: Hardware counters; ``None`` where none were recorded.
        workload: The training that was recorded: devices, layers and input shapes.
        timeline: Where the time goes within each step; ``None`` without steps and in reports of older versions.
        clocks: The clock of each file; empty in reports of older versions.
        call_tree: Operators by call path.
        probe: The recorded operators, run again in other settings; ``None`` if that was not done.
        worker: The worker processes of the loader; ``None`` without any, or if they were not followed.
        language_model: Tokens, padding and FLOPs per token; ``None`` if the callback counted no tokens.
        attention: The implementations of attention by cost; ``None`` without attention.
        recompute: The forward work that gradient checkpointing repeats; ``None`` without any.
        compiled_calls: Calls of code by ``torch.compile``; ``None`` without any.
        anomaly_checks: The checks of ``torch.autograd.detect_anomaly``; ``None`` without any.
        usual: The run's usual step, if the recorded ones of a training on a device are notably slower; else ``None``.
    """

    rank: int | None
    sources: tuple[str, ...]
    metadata: Metadata
    problems: Problems
    recording_ns: int
    breakdown: Breakdown
    phases: Phases
    arithmetic: Arithmetic | None
    autocast: AutocastTax | None
    efficiency: Efficiency | None
    launches: Launches | None
    idle: Idle | None
    sync_points: SyncPoints | None
    loading: Loading | None
    optimizer: OptimizerSteps | None
    operators: OperatorTable | None
    kernels: KernelTable | None
    modules: ModuleTree | None
    memory: Memory | None
    communication: Communication | None
    wrappers: tuple[Wrapper, ...]
    amp_gain: AmpGain | None = None
    stop_flags: StopFlags | None = None
    host_compute: HostCompute | None = None
    pauses: Pauses | None = None
    clock_skew: ClockSkew | None = None
    host_pace: HostPace | None = None
    graph_regions: GraphRegionTable | None = None
    counters: HardwareCounters | None = None
    workload: Workload = field(default_factory=Workload)
    timeline: Timeline | None = None
    clocks: tuple[SourceClock, ...] = ()
    call_tree: CallTree | None = None
    probe: Probe | None = None
    worker: WorkerGrowth | None = None
    language_model: LanguageModel | None = None
    attention: Attention | None = None
    recompute: Recompute | None = None
    compiled_calls: CompiledCalls | None = None
    anomaly_checks: AnomalyChecks | None = None
    usual: UsualStep | None = None
    link: LinkUse | None = None


def analyze_rank(trace: Trace, *, by_shape: bool = False) -> RankAnalysis:
    """Analyze one rank's recording. Concatenate several windows of a rank first."""
    recording_ns, trace = trace.end_ns - trace.begin_ns, without_tails(trace)
    computes = bool(trace.device.is_compute.any())

    def section(analysis: Callable[..., _Section], *facts: object) -> _Section:
        found = analysis(trace, *facts)
        release_columns()
        return found

    step_time, launched, pace = section(breakdown), section(launches), section(host_pace)
    used = section(efficiency, repeated_operators(trace)) if len(trace.device) else None
    attends = section(attention)
    return RankAnalysis(
        rank=trace.metadata.rank,
        sources=trace.sources,
        metadata=trace.metadata,
        problems=trace.problems,
        recording_ns=recording_ns,
        breakdown=step_time,
        phases=section(phases),
        arithmetic=section(arithmetic) if computes else None,
        autocast=section(autocast_tax) if len(trace.operators) else None,
        efficiency=used,
        launches=launched,
        idle=section(idle),
        sync_points=section(sync_points),
        loading=section(loading),
        optimizer=section(optimizer_steps),
        operators=section(operators, by_shape) if len(trace.operators) else None,
        kernels=section(kernels),
        modules=section(modules),
        memory=section(memory),
        communication=section(communication),
        wrappers=section(wrappers),
        amp_gain=section(amp_gain, step_time, launched, pace),
        stop_flags=section(stop_flags),
        host_compute=section(host_compute),
        pauses=section(pauses),
        clock_skew=section(clock_skew),
        host_pace=pace,
        graph_regions=section(graph_regions),
        counters=section(hardware_counters),
        workload=section(workload),
        timeline=section(timeline),
        clocks=tuple(
            SourceClock(clock.begin_ns - trace.begin_ns, clock.begin_ns - clock.base_time_ns, clock.begin_ns)
            for clock in trace.clocks
        ),
        call_tree=section(call_tree) if len(trace.operators) else None,
        language_model=section(language_model, used, attends),
        attention=attends,
        recompute=section(recompute),
        compiled_calls=section(compiled_calls),
        anomaly_checks=section(anomaly_checks),
    )
