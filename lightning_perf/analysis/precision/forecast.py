"""Forecast of number formats: which layers would keep their accuracy in FP8 or FP4, and the time that saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.analysis.kernels.kernel_names import is_product
from lightning_perf.analysis.kernels.kernel_table import KernelTable
from lightning_perf.machine.hardware import DEVICES, DevicePeak, find_device
from lightning_perf.run_files.numerics.samples import LayerSample, TensorSample

SAFE_DB = 15.0
"""A layer is safe in a format if all of its matrix products have at least this signal-to-noise ratio. Their error is
then at most 18 % of the result's norm. `benchmarks/results/fp8_forecast.md` compares it with emulated trainings."""

RECIPES = {
    "fp16": "FP16",
    "bf16": "BF16",
    "fp8": "FP8, current scaling",
    "fp8-delayed": "FP8, delayed scaling",
    "mxfp8": "MXFP8",
    "nvfp4": "NVFP4",
}
"""The recipes that are judged. ``fp8`` has E4M3 for weights and activations, and E5M2 for gradients."""

MULTIPLE = {"fp16": 8, "bf16": 8, "fp8": 16, "fp8-delayed": 16, "mxfp8": 32, "nvfp4": 32}
"""Kernels of a recipe want sizes that are multiples of this. FP16 and BF16 only become slower without it."""

ARITHMETIC = {"fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "fp8-delayed": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""The arithmetic of a recipe in the table of peak rates."""

SHOWN_DEVICES = ("H100 SXM5", "H200 SXM5", "B200", "L40S", "RTX 4090", "Instinct MI300X")
"""Devices that a forecast names next to the one in the recording."""

CAST_BYTES = 6
"""Bytes that a cast to 8 bits moves per element, at most. It reads 2 bytes for the scale and 2 for the cast, and writes
1 byte each for the matrix and for its transpose."""

BYTES_IN_16_BITS = 6
"""Bytes that the three products of a layer move per element: each matrix is read twice and written once."""

BYTES_IN_8_BITS = 4
"""The same with operands of 1 byte and results of 2 bytes."""

MAX_NAMED = 6
"""Layers that the advice names."""


class FormatShares(Struct, frozen=True):
    """How a format rounds the values of one tensor.

    Attributes:
        flushed: Share of the non-zero values that become zero, 0 to 1.
        saturated: Share beyond the largest value of the format, 0 to 1.
        coarse: Share of the other values that change by more than an eighth, 0 to 1.
    """

    flushed: float
    saturated: float
    coarse: float


class LayerVerdict(Struct, frozen=True):
    """The verdict on a layer in one recipe.

    Attributes:
        snr_db: Lowest signal-to-noise ratio of the layer's matrix products over all samples; None if unknown.
        product: The product with that ratio.
        safe: Whether the ratio reaches `SAFE_DB`.
        misaligned: Sizes that are not multiples of the recipe's number, e.g. ``outputs 10``.
    """

    snr_db: float | None
    product: str | None
    safe: bool
    misaligned: tuple[str, ...]


class LayerForecast(Struct, frozen=True):
    """The forecast of one layer.

    Attributes:
        name: The layer.
        rows: Rows of its matrix product.
        inputs: Terms of each sum.
        outputs: Output features or channels.
        tensors: The rounding of its tensors (``weight``, ``activation``, ``gradient``), by format.
        verdicts: The verdict on each recipe.
    """

    name: str
    rows: int
    inputs: int
    outputs: int
    tensors: dict[str, dict[str, FormatShares]]
    verdicts: dict[str, LayerVerdict]


class DeviceSaving(Struct, frozen=True):
    """The predicted saving of a recipe on one device, if all usable layers change to it.

    Attributes:
        device: The device.
        reference: The arithmetic that the saving is relative to.
        least: Part of the time of all covered products that is saved, at least. Below 0 if the casts may cost more.
        most: The same, at most.
        step_least: Part of the step that is saved, at least; None without a recording on this device.
        step_most: The same, at most.
    """

    device: str
    reference: str
    least: float
    most: float
    step_least: float | None = None
    step_most: float | None = None


class RecipeForecast(Struct, frozen=True):
    """The forecast of one recipe for the whole model.

    Attributes:
        title: Its name in text.
        safe: Layers that are safe.
        usable: Layers that are safe and have fitting sizes.
        keep_out: The layers that are not safe, in the order of the model.
        misaligned: Safe layers with sizes that do not fit.
        devices: The saving on each device that has this arithmetic.
    """

    title: str
    safe: int
    usable: int
    keep_out: tuple[str, ...]
    misaligned: tuple[str, ...]
    devices: tuple[DeviceSaving, ...]


class ProductTime(Struct, frozen=True):
    """The time of matrix products in a recording.

    Attributes:
        arithmetic: The arithmetic of most of that time.
        share: Part of the step that the products take, at most 1.
    """

    device: str
    arithmetic: str
    share: float


class Forecast(Struct, frozen=True):
    """The forecast of a run.

    Attributes:
        samples: Sampled batches.
        safe_db: The signal-to-noise ratio that a safe layer needs.
        layers: The layers, in the order of the model.
        recipes: The recipes, in order of precision.
        advice: What to do, in sentences.
        cost_share: The forecast's share of the time of the fit when it took its last sample.
    """

    samples: int
    safe_db: float
    layers: tuple[LayerForecast, ...]
    recipes: dict[str, RecipeForecast]
    advice: tuple[str, ...]
    cost_share: float | None


def forecast(
    samples: Sequence[LayerSample], *, precision: str | None = None, measured: ProductTime | None = None
) -> Forecast | None:
    """Judge the samples of a run in a precision of Lightning, e.g. ``bf16-mixed``."""
    if not samples:
        return None
    by_layer: dict[str, list[LayerSample]] = {}
    for sample in samples:
        by_layer.setdefault(sample.layer, []).append(sample)
    layers = tuple(_layer(name, found) for name, found in by_layer.items())
    reference = "fp16" if precision is not None and precision.startswith("16") else "bf16"
    recipes = {recipe: _recipe(recipe, layers, reference, measured) for recipe in RECIPES}
    last = max(samples, key=lambda sample: sample.elapsed_ns)
    return Forecast(
        samples=len({sample.step for sample in samples}),
        safe_db=SAFE_DB,
        layers=layers,
        recipes=recipes,
        advice=_advice(recipes, layers),
        cost_share=last.cost_ns / last.elapsed_ns if last.elapsed_ns else None,
    )


def product_time(table: KernelTable | None, device_name: str | None, step_ns: float | None) -> ProductTime | None:
    """Return the time of matrix products without attention; None without any, or for a device without known peaks."""
    peak = find_device(device_name)
    if table is None or peak is None or not step_ns or not table.steps:
        return None
    by_arithmetic: dict[str, int] = {}
    for row in table.rows:
        attention = any("attention" in (launcher.operator or "") for launcher in row.launchers)
        if row.arithmetic and is_product(row.name) and not attention:
            by_arithmetic[row.arithmetic] = by_arithmetic.get(row.arithmetic, 0) + row.total_ns
    if not by_arithmetic:
        return None
    share = sum(by_arithmetic.values()) / table.steps / step_ns
    return ProductTime(peak.name, max(by_arithmetic, key=by_arithmetic.__getitem__), min(share, 1.0))


def _layer(name: str, samples: Sequence[LayerSample]) -> LayerForecast:
    first = samples[0]
    return LayerForecast(
        name=name,
        rows=first.rows,
        inputs=first.inputs,
        outputs=first.outputs,
        tensors={
            name: _shares([each.tensors[name] for each in samples if name in each.tensors]) for name in first.tensors
        },
        verdicts={recipe: _verdict(recipe, samples) for recipe in RECIPES},
    )


def _shares(samples: Sequence[TensorSample]) -> dict[str, FormatShares]:
    nonzero = max(sum(each.values - each.zeros for each in samples), 1)
    found = {}
    for name in samples[0].formats:
        counts = [each.formats[name] for each in samples]
        found[name] = FormatShares(
            sum(each.flushed for each in counts) / nonzero,
            sum(each.saturated for each in counts) / nonzero,
            sum(each.coarse for each in counts) / nonzero,
        )
    return found


def _verdict(recipe: str, samples: Sequence[LayerSample]) -> LayerVerdict:
    ratios = [
        (ratio, product)
        for sample in samples
        for product, found in sample.products.items()
        if (ratio := found.get(recipe)) is not None
    ]
    lowest, worst = min(ratios, default=(None, None))
    misaligned = tuple(f"{name} {size}" for name, size in samples[0].sizes.items() if size % MULTIPLE[recipe])
    return LayerVerdict(lowest, worst, lowest is None or lowest >= SAFE_DB, misaligned)


def _recipe(
    recipe: str, layers: Sequence[LayerForecast], reference: str, measured: ProductTime | None
) -> RecipeForecast:
    verdicts = {layer.name: layer.verdicts[recipe] for layer in layers}
    keep_out = tuple(name for name, verdict in verdicts.items() if not verdict.safe)
    misaligned = tuple(name for name, verdict in verdicts.items() if verdict.safe and verdict.misaligned)
    safe = len(layers) - len(keep_out)
    devices = _savings(recipe, layers, reference, measured) if recipe not in ("fp16", "bf16") else ()
    return RecipeForecast(RECIPES[recipe], safe, safe - len(misaligned), keep_out, misaligned, devices)


def _savings(
    recipe: str, layers: Sequence[LayerForecast], reference: str, measured: ProductTime | None
) -> tuple[DeviceSaving, ...]:
    peaks = {device.name: device for device in DEVICES}
    found = []
    for name in dict.fromkeys(((measured.device,) if measured is not None else ()) + SHOWN_DEVICES):
        saving = _saving(recipe, layers, reference, peaks[name])
        if saving is None:
            continue
        if measured is not None and (name, reference) == (measured.device, measured.arithmetic):
            step_least, step_most = saving.least * measured.share, saving.most * measured.share
            saving = replace(saving, step_least=step_least, step_most=step_most)
        found.append(saving)
    return tuple(found)


def _saving(recipe: str, layers: Sequence[LayerForecast], reference: str, peak: DevicePeak) -> DeviceSaving | None:
    rates = peak.flops_per_s
    arithmetic = ARITHMETIC[recipe]
    if arithmetic not in rates or reference not in rates:
        return None
    ratio = rates[arithmetic] / rates[reference]
    now_s = least_s = most_s = 0.0
    for layer in layers:
        elements = layer.rows * layer.inputs + layer.outputs * layer.inputs + layer.rows * layer.outputs
        memory_s = elements / peak.bandwidth_bytes_per_s
        compute_s = 6 * layer.rows * layer.inputs * layer.outputs / rates[reference]  # of all three products
        layer_s = max(compute_s, BYTES_IN_16_BITS * memory_s)
        now_s += layer_s
        verdict = layer.verdicts[recipe]
        if verdict.safe and not verdict.misaligned:
            # At most the peak rates decide, and casts are fused with other kernels. At least half of the gain in peak
            # rate remains, and casts are kernels of their own.
            fastest_s = max(compute_s / ratio, BYTES_IN_8_BITS * memory_s)
            slowest_s = max(compute_s / (1 + (ratio - 1) / 2), BYTES_IN_8_BITS * memory_s) + CAST_BYTES * memory_s
            least_s += layer_s - slowest_s
            most_s += layer_s - fastest_s
    return DeviceSaving(peak.name, reference, least_s / now_s, most_s / now_s) if now_s else None


def _advice(recipes: Mapping[str, RecipeForecast], layers: Sequence[LayerForecast]) -> tuple[str, ...]:
    chosen, total = recipes["fp8"], len(layers)
    lines = [f"FP8 would be safe in {f'all {total}' if chosen.safe == total else f'{chosen.safe} of {total}'} layers."]
    if chosen.keep_out:
        lines.append(f"Keep out {_names(chosen.keep_out)}: {_reason(chosen.keep_out, layers)}.")
    if chosen.misaligned:
        one = len(chosen.misaligned) == 1
        lines.append(
            f"Pad {_names(chosen.misaligned)} or keep {'it' if one else 'them'} out: "
            f"{'a size is' if one else 'sizes are'} not a multiple of 16."
        )
    delayed = recipes["fp8-delayed"]
    if delayed.safe < chosen.safe:
        lines.append(f"Use current scaling: with delayed scaling only {delayed.safe} would be safe.")
    saving = next((each for each in chosen.devices if each.step_most is not None), None)
    if saving is not None and saving.step_least is not None and saving.step_most is not None:
        lines.append(
            f"On the {saving.device}, it would save {_range(saving.step_least, saving.step_most)} of the step."
        )
    elif chosen.devices and chosen.usable:
        saving = chosen.devices[0]
        lines.append(
            f"On an {saving.device}, it would save {_range(saving.least, saving.most)} of the time that these layers' "
            f"products take in {saving.reference.upper()}."
        )
    if saving is not None and saving.least <= 0 and chosen.usable:
        lines.append("If the casts to FP8 are not fused with other kernels, it saves nothing.")
    lines.append(
        f"MXFP8 would be safe in {recipes['mxfp8'].safe} of them, and NVFP4 without its usual countermeasures in "
        f"{recipes['nvfp4'].safe}."
    )
    return tuple(lines)


def _names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    shown = list(names[:MAX_NAMED])
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _reason(names: Sequence[str], layers: Sequence[LayerForecast]) -> str:
    worst = min((each for each in layers if each.name in names), key=lambda each: each.verdicts["fp8"].snr_db or 0.0)
    verdict = worst.verdicts["fp8"]
    where = f" of {worst.name}" if len(names) > 1 else ""
    return f"the {verdict.product}{where} has a signal-to-noise ratio of {verdict.snr_db:.1f} dB"


def _range(least: float, most: float) -> str:
    low, high = round(100 * least), round(100 * most)
    if low <= 0:
        return f"up to {high} %"
    return f"{low} to {high} %" if low != high else f"{high} %"
