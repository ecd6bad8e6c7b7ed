"""Measure every variant of a model and return the trade-off table."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lightning_perf import __version__
from lightning_perf.errors import reason_of
from lightning_perf.inference.campaign import Campaign, MeasureOptions
from lightning_perf.inference.counting.count import count_model
from lightning_perf.inference.counting.document import Count
from lightning_perf.inference.counting.peaks import find_peaks
from lightning_perf.inference.counting.roofline import Roofline, bound_latency
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measurement.accuracy import Judge
from lightning_perf.inference.model.samples import Validation
from lightning_perf.inference.model.subject import Subject, usable_device
from lightning_perf.inference.results.conclusions import NO_LIMIT_WITHOUT_DATA, condition_notes, recommend, ruin_notes
from lightning_perf.inference.results.tradeoff import (
    METHOD_VERSION,
    SCHEMA_VERSION,
    Cell,
    Machine,
    Recommendation,
    Row,
    Tradeoff,
)
from lightning_perf.inference.transforms.base import FineTune
from lightning_perf.inference.variants.build import check_subject
from lightning_perf.inference.variants.chains import Chains
from lightning_perf.inference.variants.variant import default_variants, parse_variants
from lightning_perf.machine.environment import cpu_name, device_facts, host_notes, version_facts
from lightning_perf.run_files.atomic import write_document


def describe_machine(device: torch.device) -> Machine:
    """Describe this machine before a measurement; the load afterwards is still unknown."""
    facts, notes = device_facts(device), host_notes()
    return Machine(
        device=str(facts["device.name"]),
        device_type=device.type,
        cpu=cpu_name(),
        cpus=os.cpu_count() or 1 if notes["cpus"] is None else int(notes["cpus"]),
        platform=str(notes["platform"]),
        load_before=load_average(),
        load_after=None,
        versions={
            fact.partition(".")[2]: str(version) for fact, version in version_facts().items() if version is not None
        },
    )


def load_average() -> float | None:
    """Return the load average over the last minute, or None if the system does not report it."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


TRADEOFF_FILE = "tradeoff.json"
"""File name of the document, next to the artefacts."""

MOST_INPUTS = 64
"""Most inputs for timing and for comparing outputs."""


def measure_variants(
    module: nn.Module,
    *,
    inputs: Tensor | None = None,
    validation: Validation | None = None,
    calibration: Tensor | None = None,
    fine_tune: FineTune | None = None,
    students: Mapping[str, Callable[[], nn.Module]] | None = None,
    options: MeasureOptions | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Tradeoff:
    """Build variants of a model, check each against the original, and time them in alternating rounds.

    Each variant is built in a process of its own. A fresh process then loads its artefact from disk and measures it. If
    a variant fails or crashes, its row shows the reason and the others continue.

    Args:
        module: The model, from float32 ``(n, …)`` to float32 ``(n, …)``. A fresh process must be able to import its
            class.
        inputs: Real inputs to time, ``(n, …)``; the first validation inputs if not given.
        validation: Held-out inputs with labels. Without them, accuracy is not measured.
        calibration: Real inputs from the training side, for int8. If not given, `inputs` are used and a note says so.
        fine_tune: Trains a changed model. Without it, transforms that need training fail with that reason.
        students: Functions that make untrained students, by name. Each name adds the transforms ``distil-NAME`` and
            ``alone-NAME``.
        options: Variants, batch sizes, limits, and the folder for the results.
        on_progress: Called with each line of progress.

    Returns:
        The document.

    Raises:
        InferenceError: The model, its data or a setting cannot be used.
    """
    on_progress = on_progress or (lambda _: None)
    options = options or MeasureOptions()
    options = replace(options, name=options.name or type(module).__name__)
    device = usable_device(options.device)
    _check_settings(options, validation)
    parsed = parse_variants(options.variants or default_variants(device.type), students)
    said = list(options.notes)
    timed = _timed_inputs(inputs, validation)
    if calibration is None:
        calibration = timed
        said.append(f"No calibration data was given: int8 was calibrated on the {len(timed)} timed inputs.")
    subject = Subject(_prepared(module), timed, calibration.float(), device, options.threads[0])
    original = check_subject(subject).numpy()
    machine = describe_machine(device)

    with tempfile.TemporaryDirectory(prefix="lightning-perf-") as folder:
        work = Path(folder)
        if options.out is not None:
            _make_folder(options.out)
        np.save(work / "inputs.npy", timed.numpy())
        judges = [] if validation is None else [Judge(validation, subject.input_shape, original.shape, work)]
        chains = Chains(subject, fine_tune, work, on_progress)
        campaign = Campaign(parsed, subject, original, chains, judges, options, work, on_progress)
        for number in options.threads:
            campaign.run(number, options.batch_sizes)
    doubts = [note for judge in judges for note in judge.notes()]
    rows, cells = campaign.rows, campaign.cells
    said += [*doubts, *ruin_notes(rows)]
    machine = replace(machine, load_after=load_average())
    count, bound = _arithmetic(subject, options.batch_sizes[0], rows, said)
    tradeoff = Tradeoff(
        schema_version=SCHEMA_VERSION,
        method_version=METHOD_VERSION,
        tool_version=__version__,
        model=options.name or "",
        input_shape=subject.input_shape,
        machine=machine,
        effort=options.effort,
        validation_inputs=None if validation is None else len(validation.inputs),
        notes=(*said, *condition_notes(machine, rows, cells)),
        rows=rows,
        cells=cells,
        recommendation=_recommendation(options, rows, cells[0], next(iter(doubts), None)),
        count=count,
        roofline=bound,
    )
    return tradeoff if options.out is None else save_document(tradeoff, options.out)


def save_document(tradeoff: Tradeoff, folder: Path) -> Tradeoff:
    """Write a document next to the artefacts.

    Args:
        tradeoff: The document.
        folder: The folder of the artefacts.

    Returns:
        The document. If the file cannot be written, it has a note about that, so that the measurement is not lost.
    """
    path = folder / TRADEOFF_FILE
    try:
        write_document(path, tradeoff)
    except OSError as error:
        note = f"{path} could not be written ({error.strerror})."
        return replace(tradeoff, notes=(*tradeoff.notes, note))
    return tradeoff


def _check_settings(options: MeasureOptions, validation: Validation | None) -> None:
    for what, values in (("batch sizes", options.batch_sizes), ("threads", options.threads)):
        if not values or min(values) < 1 or len(set(values)) != len(values):
            raise InferenceError(
                f"{what}: got {', '.join(map(str, values)) or 'none'}. Give different numbers above 0."
            )
    if options.max_accuracy_drop_points is not None and validation is None:
        raise InferenceError(NO_LIMIT_WITHOUT_DATA)


def _timed_inputs(inputs: Tensor | None, validation: Validation | None) -> Tensor:
    """Return the inputs to time and to compare outputs with: those given, else the first of the validation data."""
    if inputs is None:
        if validation is None:
            raise InferenceError("There are no inputs. Give real inputs to time, or validation data.")
        inputs = validation.inputs
    return inputs[:MOST_INPUTS].float().contiguous()


def _recommendation(
    options: MeasureOptions, rows: Sequence[Row], cell: Cell, doubt: str | None
) -> Recommendation | None:
    latency_ms, drop_points = options.max_latency_ms, options.max_accuracy_drop_points
    if latency_ms is None and drop_points is None:
        return None
    return recommend(rows, cell, max_latency_ms=latency_ms, max_accuracy_drop_points=drop_points, doubt=doubt)


def _prepared(module: nn.Module) -> nn.Module:
    """Return a copy of the model to study, so that the caller's model stays unchanged."""
    try:
        return copy.deepcopy(module).cpu().float().eval().requires_grad_(False)
    except Exception as error:  # copying runs code of the model's, which may raise anything
        raise InferenceError(f"{type(module).__name__} cannot be copied ({reason_of(error)}).") from error


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InferenceError(f"{folder} cannot be created ({error.strerror}). Give another --out.") from error


PEAK_ATTEMPTS = 3
"""Measurements of the peak rates: other load makes them too low, so the highest count."""


def _arithmetic(
    subject: Subject, batch: int, rows: Sequence[Row], notes: list[str]
) -> tuple[Count | None, Roofline | None]:
    try:
        count = count_model(subject.module, subject.input_shape)
        batched = count_model(subject.module, subject.input_shape, batch)
    except InferenceError as error:
        notes.append(f"FLOPs were not counted: {error}")
        return None, None
    if count.uncounted:
        kinds = ", ".join(sorted({layer.kind for layer in count.uncounted}))
        notes.append(f"The count of FLOPs is too low: some operators in {kinds} have no known formula.")
    fastest = min(_exact_latencies(rows, subject.threads, batch), default=None)
    bound: Roofline | None = None
    for _ in range(PEAK_ATTEMPTS):
        peaks = find_peaks(subject.device, subject.threads, working_set_bytes=batched.compulsory_bytes)
        bound = bound_latency(batched, peaks if bound is None else bound.peaks.highest(peaks))
        if fastest is None or bound.bound_ms <= fastest[0] or not peaks.measured:
            return count, bound
    if fastest is not None:
        notes.append(
            f"The shortest possible time is left out: {fastest[1]} is faster than the rates that this busy machine "
            "showed in their measurement. Measure on a quiet machine."
        )
    return count, None


def _exact_latencies(rows: Sequence[Row], threads: int, batch: int) -> Iterator[tuple[float, str]]:
    """Yield the 10th percentile in milliseconds, and the name, of variants with the arithmetic of the bound."""
    for row in rows:
        latency = row.latency(threads, batch)
        if latency is not None and not row.transforms and (row.provenance or {}).get("dtype") == "float32":
            yield latency.p10_ms, row.variant
