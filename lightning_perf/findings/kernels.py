"""Rules about kernels that another setting avoids or speeds up: precision, layout, and optimizers in a loop."""

from __future__ import annotations

import re

from lightning_perf.analysis.host.host_compute import SHORT_NS
from lightning_perf.analysis.host.waits import SyncPoint
from lightning_perf.analysis.kernels.arithmetic import REASONS
from lightning_perf.analysis.kernels.kernel_names import changes_layout
from lightning_perf.analysis.model.workload import OptimizerSteps
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import ANOTHER_MODEL, ONLY_LARGER_BATCH, SIXTEEN_BITS, Problem, SavingRange, rule
from lightning_perf.findings.savings import (
    choose_saving,
    compile_obstacle,
    device_saving_ns,
    each,
    idle_saving_ns,
    in_phases,
    processor_of,
    step_ns,
    whole,
    worth_it,
)
from lightning_perf.machine.hardware import find_device, is_amd, product_speed_up
from lightning_perf.trace.description import DeviceProperties
from lightning_perf.units import counted, format_duration, format_share


def device_in_use(analysis: RankAnalysis) -> DeviceProperties | None:
    """Return the device that the recording used, or the first one that it lists; ``None`` for an empty list."""
    devices = analysis.metadata.devices
    used = {device.ordinal for device in analysis.efficiency.devices} if analysis.efficiency is not None else set()
    return next((device for device in devices if device.ordinal in used), devices[0] if devices else None)


def has_bf16(device: DeviceProperties | None) -> bool:
    """Return whether a device multiplies BF16: NVIDIA from compute capability 8.0 on, AMD Instinct from MI100 on."""
    if device is None:
        return False
    if re.search(r"\bMI\d{3}", device.name or ""):
        return True
    is_amd = re.search(r"AMD|Radeon|Instinct", device.name or "") is not None
    return not is_amd and device.compute_major is not None and device.compute_major >= 8


MAX_HALF_SHARE = 0.10
"""Share of 16-bit compute below which mixed precision is advised, as in XProf."""

UNUSED_TENSOR_CORES = ("fp32_inputs", "tf32_off")


@rule("half-precision")
def half_precision(analysis: RankAnalysis) -> Problem | None:
    """Find FP32 or TF32 runs that automatic mixed precision would speed up.

    Model: that of `lightning_perf.analysis.precision.amp_gain`.
    """
    arithmetic, gain = analysis.arithmetic, analysis.amp_gain
    if arithmetic is None or not arithmetic.compute_ns or gain is None:
        return None
    steps = max(arithmetic.steps, 1)
    half_ns = arithmetic.row("fp16").time_ns + arithmetic.row("bf16").time_ns
    plain_ns = sum(row.time_ns for row in arithmetic.eligible_unused if row.reason in UNUSED_TENSOR_CORES)
    tensor_core_ns = max(0, arithmetic.tensor_core_ns - half_ns)
    full_ns = arithmetic.row("fp32").time_ns + arithmetic.row("tf32").time_ns
    if half_ns / arithmetic.compute_ns >= MAX_HALF_SHARE or not plain_ns + tensor_core_ns:
        return None
    bf16 = has_bf16(device_in_use(analysis))
    saving = choose_saving(
        analysis,
        "bf16" if bf16 else "fp16",
        (max(0.0, gain.least_saving_ns), gain.most_saving_ns),
        "FP32 products speed up by a factor of at least 2, at most 1.1 times the ratio of the device's peak rates. "
        "TF32 products speed up by 1.2 to 2 (convolutions 4), kernels that read their results by up to 2. Memory, "
        "casts and the host limit the gain.",
    )
    products = [
        f"{format_duration(ns / steps)} {each(analysis)} in {where}"
        for ns, where in ((plain_ns, "FP32 without Tensor Cores"), (tensor_core_ns, "FP32 or TF32 on Tensor Cores"))
        if ns
    ]
    return Problem(
        f"No 16-bit arithmetic: {format_share(full_ns / arithmetic.compute_ns)} of device compute is FP32 or TF32",
        f"Matrix products and convolutions take {' and '.join(products)}. In 16 bits they run on Tensor Cores.",
        f'Train in mixed precision: Trainer(precision="{"bf16-mixed" if bf16 else "16-mixed"}").',
        saving,
        changes=SIXTEEN_BITS,
    )


DATA_CENTRE_TF32 = (2.0, 8.8)
OTHER_TF32 = (1.0, 2.2)
"""Least and most speed-up of FP32 products by TF32 on devices without a row in `lightning_perf.machine.hardware`,
such as MIG slices and laptop GPUs. Devices of compute capability 8.0, 9.0 and 10.0 have peak rates about 8 times apart
(A100: 156 and 19.5 TFLOP/s), all others at most 2 times."""


@rule("tf32-off")
def tf32_off(analysis: RankAnalysis) -> Problem | None:
    """Find FP32 matrix products that TF32 would put on Tensor Cores."""
    arithmetic = analysis.arithmetic
    unused = [row for row in arithmetic.eligible_unused if row.reason == "tf32_off"] if arithmetic is not None else []
    if arithmetic is None or not unused:
        return None
    factors = _tf32_speed_up(device_in_use(analysis))
    if factors is None:
        return None
    steps = max(arithmetic.steps, 1)
    time_ns = sum(row.time_ns for row in unused) / steps
    saving = choose_saving(
        analysis,
        "tf32",
        device_saving_ns(analysis, *(time_ns * (1 - 1 / factor) for factor in factors)),
        f"These products speed up {factors[0]:.2g} to {factors[1]:.2g} times, by the device's peak rates.",
    )
    kernels = counted(sum(row.kernels for row in unused) / steps, "kernel")
    operators = ", ".join(unused[0].operators[:3])
    return Problem(
        f"TF32 is off: FP32 matrix products take {format_duration(time_ns)} {each(analysis)} without Tensor Cores",
        f"{kernels} {each(analysis)}, launched by {operators}.",
        'Allow TF32: Trainer(callbacks=[PerfCallback(tf32="on")]). Without the callback, before training: '
        'torch.set_float32_matmul_precision("high"), and torch.backends.cudnn.allow_tf32 = True for convolutions.',
        saving,
        changes="the inputs of products round to 10 bits of mantissa",
    )


def _tf32_speed_up(device: DeviceProperties | None) -> tuple[float, float] | None:
    """Return the least and most speed-up on a device, or `None` if it has no TF32."""
    if device is None:
        return OTHER_TF32
    peak = find_device(device.name, device.total_memory_bytes)
    if peak is not None:
        return product_speed_up(peak, "fp32", "tf32")
    data_centre = not is_amd(device.name) and device.compute_minor == 0 and device.compute_major in (8, 9, 10)
    return DATA_CENTRE_TF32 if data_centre else OTHER_TF32


TENSOR_CORE_FIXES = {
    "dimensions": (
        (
            "Make the sizes of layers, vocabularies and batches multiples of 8 (FP16, BF16) or 16 (INT8, FP8), e.g. "
            "torch.nn.Embedding(50304, …) instead of 50257 and batch_size=32 instead of 30."
        ),
        ANOTHER_MODEL,
    ),
    "fp32_only_operator": (
        (
            "Autocast keeps these operators in FP32 for its range. If you do not need that, call them on 16-bit inputs "
            'inside torch.autocast("cuda", enabled=False).'
        ),
        SIXTEEN_BITS,
    ),
    "library_choice": (
        (
            "Types and sizes fit, but the library chose another kernel. Try channels last, a larger batch, or "
            "Trainer(benchmark=True)."
        ),
        ONLY_LARGER_BATCH,
    ),
}
"""Fixes by reason, and how they change results. Other reasons have separate rules."""

TENSOR_CORE_SPEED_UP = (1.5, 3.0)
"""Least and most speed-up of a product by Tensor Cores. Large square products gain more."""


@rule("tensor-cores")
def tensor_cores(analysis: RankAnalysis) -> Problem | None:
    """Find products that could use Tensor Cores, and the main reason against it."""
    arithmetic = analysis.arithmetic
    if arithmetic is None:
        return None
    unused = [row for row in arithmetic.eligible_unused if row.reason in TENSOR_CORE_FIXES]
    if not unused:
        return None
    main = unused[0]
    steps = max(arithmetic.steps, 1)
    time_ns = main.time_ns / steps
    saving_ns = device_saving_ns(analysis, *(time_ns * (1 - 1 / factor) for factor in TENSOR_CORE_SPEED_UP))
    action, changes = TENSOR_CORE_FIXES[main.reason]
    return Problem(
        f"Tensor Cores unused: matrix products take {format_duration(time_ns)} {each(analysis)} without them",
        f"{counted(main.kernels / steps, 'kernel')} {each(analysis)}, launched by "
        f"{', '.join(main.operators[:3])}: {REASONS[main.reason]}.",
        action,
        SavingRange(saving_ns, "These products speed up 1.5 to 3 times."),
        changes=changes,
    )


@rule("autocast-tax")
def autocast_tax(analysis: RankAnalysis) -> Problem | None:
    """Find repeated casts of autocast: of weights, and of tensors that are cast to FP32 and back."""
    tax = analysis.autocast
    if tax is None or not tax.on_device or tax.missing is not None:
        return None
    steps = max(tax.steps, 1)
    repeated_ns, round_trip_ns = tax.repeated_weight_ns / steps, tax.round_trip_ns / steps
    saving_ns = device_saving_ns(analysis, repeated_ns + round_trip_ns / 2, repeated_ns + round_trip_ns)
    evidence, actions = [], []
    if tax.repeated_weight_casts:
        evidence.append(
            f"{counted(tax.repeated_weight_casts / steps, 'cast')} {each(analysis)} of a weight that was already cast "
            f"take {format_duration(repeated_ns)}."
        )
        fp16, bf16 = (sum(cast.count for cast in tax.casts if cast.target == kind) for kind in ("fp16", "bf16"))
        precision = "16-mixed" if fp16 > bf16 else "bf16-mixed"
        actions.append(
            "Lightning turns autocast's weight cache off. Let the callback set the precision, which turns it on: "
            f'Trainer(callbacks=[PerfCallback(precision="{precision}")]) without precision in the Trainer. '
            "In your own loop, put torch.autocast(…, cache_enabled=True) around the whole forward pass."
        )
    if tax.round_trips:
        evidence.append(
            f"{counted(tax.round_trips / steps, 'tensor')} {each(analysis)} cast to FP32 and back: "
            f"{format_duration(round_trip_ns)}."
        )
        avoid = "void operators that autocast keeps in FP32 between 16-bit ones."
        can_fuse = not compile_obstacle(analysis)
        actions.append(f"Fuse the casts: model = torch.compile(model). Or a{avoid}" if can_fuse else f"A{avoid}")
    return Problem(
        f"Avoidable casts: casts between floating types take {format_share(tax.share)} of device compute",
        evidence,
        " ".join(actions),
        SavingRange(saving_ns, "All repeated casts of weights go away, and half to all of the round trips."),
    )


@rule("channels-last")
def channels_last(analysis: RankAnalysis) -> Problem | None:
    """Find kernels that only convert between channels first and channels last."""
    on_tensor_cores = analysis.arithmetic.tensor_core_share if analysis.arithmetic is not None else None
    # Without Tensor Cores, cuDNN converts channels last as well: its FP32 kernels work in channels first.
    if analysis.kernels is None or not on_tensor_cores:
        return None
    rows = [row for row in analysis.kernels.rows if changes_layout(row.name)]
    if not rows:
        return None
    steps = max(analysis.kernels.steps, 1)
    kernel_ns = sum(row.total_ns for row in rows) / steps
    number = sum(row.calls for row in rows) / steps
    saving = choose_saving(
        analysis,
        "channels-last",
        device_saving_ns(analysis, kernel_ns / 2, kernel_ns),
        "The conversions go away, or half of them if an operator insists on channels first.",
    )
    return Problem(
        f"Layout changes around convolutions: {format_duration(kernel_ns)} {each(analysis)}",
        f"{counted(number, 'kernel')} {each(analysis)} for conversions between channels first and channels "
        "last, which Tensor Cores need.",
        "Keep model and batches in channels last: model.to(memory_format=torch.channels_last) before trainer.fit, and "
        "images = images.contiguous(memory_format=torch.channels_last) in training_step.",
        saving,
    )


def is_benchmarking(point: SyncPoint) -> bool:
    """Return whether a wait is cuDNN's timing of an algorithm: an event synchronization inside a convolution."""
    return "EventSynchronize" in point.call and "conv" in (point.operator or "").lower()


@rule("cudnn-benchmark", part=in_phases("forward", "backward"))
def cudnn_benchmark(analysis: RankAnalysis) -> Problem | None:
    """Find steps in which ``torch.backends.cudnn.benchmark`` measures algorithms.

    It does so once per shape, so with fixed shapes it is over after the first step.
    """
    syncs = analysis.sync_points
    if syncs is None:
        return None
    points = [point for point in syncs.points if is_benchmarking(point)]
    steps = max(syncs.steps, 1)
    wait_ns = sum(point.wait_ns for point in points) / steps
    if not worth_it(wait_ns, analysis):
        return None
    calls = sum(point.calls for point in points)
    return Problem(
        "cuDNN measures algorithms during the recorded steps",
        f"The host waits for {counted(calls, 'measurement')} inside convolutions, "
        f"{format_duration(wait_ns * steps)} in total.",
        "If you recorded the first steps, record later ones: PerfCallback(skip_first=20). If shapes change from batch "
        "to batch, turn the measurements off: Trainer(benchmark=False).",
        SavingRange(
            (wait_ns, min(2 * wait_ns, step_ns(analysis))),
            "The waits for measurements go away, and up to as much again for the measured work.",
        ),
    )


FUSED_OPTIMIZERS = ("Adagrad", "Adam", "AdamW", "SGD")
"""Optimizers of ``torch.optim`` with ``fused=True`` (https://docs.pytorch.org/docs/stable/optim.html#algorithms)."""

REMAINS_ON_DEVICE = {"loop": (0.5, 0.1), "foreach": (0.8, 0.5)}
"""Share of the optimizer's exposed time that remains, at most and at least: thousands of launches become tens."""

REMAINS_ON_PROCESSOR = {"Adagrad": (0.6, 0.25), "Adam": (0.6, 0.12), "AdamW": (0.6, 0.12), "SGD": (0.8, 0.25)}
"""Share of a loop over parameters on a processor that remains, at most and at least.

Every operator of the loop reads and writes whole parameters, some into fresh memory. A fused update does so once.
Measured (``benchmarks/results/fused_optimizer.md``): Adam and AdamW 0.15 to 0.44, Adagrad 0.37 to 0.47, SGD with
momentum or weight decay 0.27 to 0.77. A recorded loop may be slower by a third than in later steps of the training, in
which the system no longer has to clear fresh memory.
"""


@rule("unfused-optimizer", part=in_phases("optimizer"))
def unfused_optimizer(analysis: RankAnalysis) -> Problem | None:
    """Find optimizers that a fused implementation would speed up."""
    optimizer = analysis.optimizer
    if optimizer is None or optimizer.name not in FUSED_OPTIMIZERS:
        return None
    if analysis.breakdown.has_device:
        return _on_device(analysis, optimizer)
    return _on_processor(analysis, optimizer) if analysis.host_compute is not None else None


def _on_device(analysis: RankAnalysis, optimizer: OptimizerSteps) -> Problem | None:
    """Find an update on a device. The device time of the update itself stays."""
    if optimizer.implementation not in REMAINS_ON_DEVICE:
        return None
    phase_ns = analysis.phases.phase("optimizer").mean_ns
    steps = max(optimizer.steps, 1)
    shrinks_ns = max(0.0, phase_ns - optimizer.device_ns / steps / 2)
    most, least = REMAINS_ON_DEVICE[optimizer.implementation]
    saving = choose_saving(
        analysis,
        "fused-optimizer",
        idle_saving_ns(analysis, shrinks_ns * (1 - most), shrinks_ns * (1 - least)),
        f"{round(100 * least)} to {round(100 * most)} % of the phase remains, plus the work of the device.",
    )
    how = "in a loop over parameters" if optimizer.implementation == "loop" else "in groups of parameters (foreach)"
    return Problem(
        f"Unfused optimizer: {optimizer.name} takes {format_duration(phase_ns)} of {whole(analysis)}",
        f"It updates {how}: {counted(optimizer.launches / steps, 'launch', 'launches')} {each(analysis)}, "
        f"{format_duration(optimizer.host_ns / steps)} on the host for "
        f"{format_duration(optimizer.device_ns / steps)} of work on the device.",
        f"Use torch.optim.{optimizer.name}(…, fused=True). In mixed precision it excludes gradient_clip_val.",
        saving,
    )


def _on_processor(analysis: RankAnalysis, optimizer: OptimizerSteps) -> Problem | None:
    """Find an update on a processor.

    Model: a fused update reads and writes each parameter once, and a loop does so in each of its operators. For tiny
    parameters it may save nothing, since it divides even those among threads.
    """
    if optimizer.implementation != "loop" or not optimizer.operators:
        return None
    if optimizer.name == "SGD" and not {"aten::mul_", "aten::add"} & set(optimizer.operator_names):
        return None  # neither momentum nor weight decay: it runs one operator per parameter already
    mean_ns = optimizer.host_ns / max(optimizer.steps, 1)
    most, least = REMAINS_ON_PROCESSOR[optimizer.name]
    if optimizer.host_ns < SHORT_NS * optimizer.operators and processor_of(analysis).threads != 1:
        most = 1.0
    saving = choose_saving(
        analysis,
        "fused-optimizer",
        (mean_ns * (1 - most), mean_ns * (1 - least)),
        f"{round(100 * least)} to {round(100 * most)} % of the update remains.",
    )
    operators = optimizer.operators / max(optimizer.steps, 1)
    return Problem(
        f"Unfused optimizer: {optimizer.name} takes {format_duration(mean_ns)} of {whole(analysis)}",
        f"It updates in a loop over parameters: {counted(operators, 'operator')} {each(analysis)}, and each "
        "reads and writes a whole parameter.",
        f"Use torch.optim.{optimizer.name}(…, fused=True).",
        saving,
    )
