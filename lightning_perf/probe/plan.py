"""Chooses the settings to probe from a recording, and the task for the worker process."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.analysis.host.host_compute import HostCompute, host_compute
from lightning_perf.analysis.host.launches import StepFloor, step_floor
from lightning_perf.analysis.host.loading import loading
from lightning_perf.analysis.intervals import json_list
from lightning_perf.analysis.kernels.arithmetic import uses_tf32
from lightning_perf.analysis.model.operators import OperatorCalls, operator_calls
from lightning_perf.analysis.model.workload import OptimizerSteps, optimizer_steps, workload
from lightning_perf.analysis.steps.breakdown import breakdown
from lightning_perf.analysis.steps.phases import phases
from lightning_perf.findings.cpu import FEW_THREADS, IDLE_CORES
from lightning_perf.findings.kernels import FUSED_OPTIMIZERS
from lightning_perf.machine.processor import BF16_FLAGS, cpu_flags
from lightning_perf.probe.replay.messages import CURRENT, OptimizerTask, Setting, Task
from lightning_perf.trace.description import Batch, Settings
from lightning_perf.trace.trace import Trace
from lightning_perf.workers.limits import free_bytes, usable_cores

FUSABLE = ("loop", "foreach")

LEAST_FETCH = 0.05
"""Share of the step in fetching a batch from which its transfer between processes is measured."""

MEMORY_SHARE = 0.25
"""Most memory for the tensors of a probe, as a share of the memory that is free."""

MOST_MEMORY_BYTES = 4 << 30


class Plan(Struct, frozen=True):
    """A probe of a recording.

    Attributes:
        task: The task for the worker process, without the arguments of the calls.
        host: The computing of the processor; ``None`` for a training on a device.
        floor: The time that a step keeps with CUDA graphs; ``None`` for a training on a processor.
        python_ns: Time of Python between operators in the forward pass of a training on a processor, as recorded.
        usual_step_ns: Step time without the profiler; ``None`` if it is unknown.
        page_faults: Page faults per step of the training, before the recording; 0 if they were not counted.
    """

    task: Task
    calls: OperatorCalls
    step_ns: float
    host: HostCompute | None
    optimizer: OptimizerSteps | None
    floor: StepFloor | None = None
    python_ns: float = 0.0
    usual_step_ns: float | None = None
    page_faults: float = 0.0
    page_fault_ns: float = 0.0

    @property
    def added_ns(self) -> float | None:
        """Time that the profiler adds to a step; ``None`` if it is unknown."""
        return max(0.0, self.step_ns - self.usual_step_ns) if self.usual_step_ns else None

    @property
    def gaps_ns(self) -> float:
        """Time of Python between operators in a step, without the time that the profiler adds there."""
        if self.host is None:
            return 0.0
        return max(0.0, self.host.gaps_ns / self.host.steps - (self.added_ns or 0.0))


def plan_probe(trace: Trace, seconds: float, *, has_cuda: bool) -> Plan | None:
    """Plan a probe; ``None`` if no operator call has shapes, or if the recording is of a device that is not here."""
    calls = operator_calls(trace)
    step_ns = breakdown(trace).wall.mean_ns or 0.0
    if calls is None or not any(call.shapes for call in calls.calls) or (calls.on_device and not has_cuda):
        return None
    processor = trace.metadata.processor
    threads = (processor.threads if processor is not None else None) or 1
    cores = usable_cores() or threads
    batch_size = next((shape[0] for shape in workload(trace).inputs if shape), None)
    optimizer = optimizer_steps(trace)
    memory_bytes = min(MOST_MEMORY_BYTES, int(MEMORY_SHARE * free_bytes()))
    on = _device_settings(trace) if calls.on_device else Settings()
    task = Task(
        calls=calls,
        bound=b"",
        skipped={},
        settings=_settings(calls, threads, cores, batch_size, on),
        device="cuda" if calls.on_device else "cpu",
        threads=min(threads, max(1, cores)),
        batch_size=batch_size,
        seconds=seconds,
        memory_bytes=memory_bytes,
        optimizer=_optimizer(optimizer),
        batch=_sent_batch(trace, step_ns),
        on=on,
    )
    host = host_compute(trace)
    python_ns = phases(trace).time_ns("forward", "host_other") or 0.0 if host is not None else 0.0
    return Plan(
        task,
        calls,
        step_ns,
        host,
        optimizer,
        step_floor(trace),
        python_ns,
        page_faults=(processor.page_faults if processor is not None else None) or 0.0,
        page_fault_ns=(processor.page_fault_ns if processor is not None else None) or 0.0,
    )


def _sent_batch(trace: Trace, step_ns: float) -> Batch | None:
    """Return the batch to send between processes; ``None`` if fetching takes little time."""
    found = loading(trace)
    if found is None or not found.steps or found.fetch_ns / found.steps < LEAST_FETCH * step_ns:
        return None
    batch = trace.metadata.batch
    return batch if batch is not None and batch.complete else None


def _settings(
    calls: OperatorCalls, threads: int, cores: int, batch_size: int | None, on: Settings
) -> tuple[Setting, ...]:
    autocast = calls.autocast
    current = Setting(
        CURRENT, autocast, tf32_matmul=bool(on.tf32_matmul), tf32_convolution=on.tf32_convolution is not False
    )
    found = [current]
    if autocast is None and (calls.on_device or (cpu_flags() or frozenset()) & BF16_FLAGS):
        found.append(replace(current, name="bf16", autocast="bfloat16"))
    if autocast is None and calls.on_device:
        found.append(replace(current, name="fp16", autocast="float16"))
    if any(_is_channels_first(call.name, call.shapes, call.strides) for call in calls.calls):
        found.append(replace(current, name="channels-last", channels_last=True))
    if not calls.on_device and threads <= FEW_THREADS * cores:
        found.append(replace(current, name="threads", threads=cores))
    if calls.on_device and autocast is None and not (on.tf32_matmul and on.tf32_convolution):
        found.append(replace(current, name="tf32", tf32_matmul=True, tf32_convolution=True))
    if batch_size is not None:
        found.append(replace(current, name="batch", batch=2))
    return tuple(found)


def _device_settings(trace: Trace) -> Settings:
    """Return the settings of the recording's device, with those for TF32 by its kernels if they were not noted."""
    noted = trace.metadata.settings or Settings()
    matmul, convolution = uses_tf32(trace)
    return replace(
        noted,
        tf32_matmul=matmul if noted.tf32_matmul is None else noted.tf32_matmul,
        tf32_convolution=convolution if noted.tf32_convolution is None else noted.tf32_convolution,
    )


def without_busy_cores(plan: Plan, others: float) -> Plan:
    """Return the plan without more threads, if other programs keep their cores busy: their time would say nothing."""
    task = plan.task
    settings = tuple(
        setting
        for setting in task.settings
        if setting.threads is None or setting.threads - others - task.threads >= IDLE_CORES * setting.threads
    )
    return replace(plan, task=msgspec.structs.replace(task, settings=settings))


def _is_channels_first(name: str, shapes: str, strides: str) -> bool:
    """Return whether a call is a convolution of images with a weight in channels first."""
    if name not in ("aten::conv2d", "aten::conv_transpose2d", "aten::convolution"):
        return False
    shape, stride = json_list(shapes), json_list(strides)
    if len(shape) < 2 or not isinstance(shape[1], list) or len(shape[1]) != 4:
        return False
    if len(stride) < 2 or not isinstance(stride[1], list) or len(stride[1]) != 4:
        return True
    return bool(stride[1][1] != 1 or shape[1][2] * shape[1][3] == 1)


def _optimizer(steps: OptimizerSteps | None) -> OptimizerTask | None:
    if steps is None or steps.name not in FUSED_OPTIMIZERS or steps.implementation not in FUSABLE:
        return None
    names = {name.removeprefix("aten::").removeprefix("_foreach_") for name in steps.operator_names}
    return OptimizerTask(
        steps.name,
        steps.implementation,
        momentum="mul_" in names,
        nesterov="mul_" in names and "add" in names,
        weight_decay="mul_" in names if steps.name == "AdamW" else steps.name != "SGD" and "add" in names,
        amsgrad=bool({"maximum", "maximum_"} & names),
    )
