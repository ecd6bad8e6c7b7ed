"""Build, check and measure the variants of a model: `measure_variants`."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lightning_perf import __version__
from lightning_perf.inference.build import check_subject
from lightning_perf.inference.campaign import Campaign, Place
from lightning_perf.inference.chains import Chains
from lightning_perf.inference.count import count_model
from lightning_perf.inference.count_document import Count
from lightning_perf.inference.device import usable_device
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.judge import Judge
from lightning_perf.inference.machine import describe_machine, load_average
from lightning_perf.inference.measure import Effort
from lightning_perf.inference.peaks import find_peaks
from lightning_perf.inference.recommend import NO_LIMIT_WITHOUT_DATA, recommend
from lightning_perf.inference.roofline import Roofline, bound_latency
from lightning_perf.inference.runtimes.faults import reason_of
from lightning_perf.inference.subject import Subject
from lightning_perf.inference.summary import condition_notes
from lightning_perf.inference.tradeoff import METHOD_VERSION, SCHEMA_VERSION, Tradeoff
from lightning_perf.inference.transform import FineTune
from lightning_perf.inference.validation import Validation
from lightning_perf.inference.variant import default_variants, parse_variants
from lightning_perf.run_files.atomic import write_document

__all__ = ["TRADEOFF_FILE", "MeasureOptions", "measure_variants", "save_document"]

TRADEOFF_FILE = "tradeoff.json"
"""The document, beside the artefacts."""

MOST_INPUTS = 64
"""Inputs that outputs are compared on, and that batches are made of."""


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is measured, and where it goes.

    Attributes:
        variants: Names as `parse_variant` reads them, the original always first; `default_variants` when not given.
        batch_sizes: Inputs per call. The first one, with the first of `threads`, decides the recommendation.
        threads: CPU threads; everything is built and measured again for each number.
        device: Where variants run.
        effort: How much is measured.
        max_latency_ms: Recommend a variant whose p90 latency stays below.
        max_accuracy_drop_points: Recommend a variant whose accuracy is lower by no more, in percentage points.
        name: What to call the model; its class's name when not given.
        labels: Names of the classes, kept in the artefacts.
        notes: What a reader must know, for the document.
        out: Folder that keeps the artefacts and ``tradeoff.json``; nothing is kept when not given.
        timeout_s: What building, loading, or predicting the validation data may take for one variant.
    """

    variants: Sequence[str] | None = None
    batch_sizes: Sequence[int] = (1, 32)
    threads: Sequence[int] = (1,)
    device: torch.device | str = "cpu"
    effort: Effort = field(default_factory=Effort)
    max_latency_ms: float | None = None
    max_accuracy_drop_points: float | None = None
    name: str | None = None
    labels: Sequence[str] = ()
    notes: Sequence[str] = ()
    out: Path | None = None
    timeout_s: float = 1800.0


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
    """Build variants of a model, check each against the original, and measure them in turns.

    Each variant is built in a process of its own and measured in another, fresh one, from its artefact on disk: one
    that fails or crashes is a row with its reason, and the others go on.

    Args:
        module: The model, from float32 ``(n, …)`` to float32 ``(n, …)``; its class can be imported by a fresh process.
        inputs: Real inputs to time, ``(n, …)``; the first of the validation data when not given.
        validation: Held-out inputs with labels. Without it accuracy is not measured.
        calibration: Real inputs from the training side, for int8; `inputs` when not given, which a note says.
        fine_tune: Trains a changed model. Without it, transforms that need training are rows with that reason.
        students: What makes each student to distil to, untrained, by its name: ``distil-NAME`` is a transform.
        options: Which variants, batch sizes and limits, and where the results go.
        on_progress: Called with each line of progress.

    Returns:
        The document.

    Raises:
        InferenceError: The model, its data or a setting cannot be used.
    """
    on_progress = on_progress or (lambda _: None)
    options = options or MeasureOptions()
    batch_sizes, threads, out = options.batch_sizes, options.threads, options.out
    max_accuracy_drop_points = options.max_accuracy_drop_points
    device = usable_device(options.device)
    _check_settings(batch_sizes, threads)
    if max_accuracy_drop_points is not None and validation is None:
        raise InferenceError(NO_LIMIT_WITHOUT_DATA)
    parsed = parse_variants(options.variants or default_variants(device.type), students)
    if inputs is None:
        if validation is None:
            raise InferenceError("no inputs: give real inputs to time, or validation data.")
        inputs = validation.inputs
    inputs = inputs[:MOST_INPUTS].float().contiguous()
    said = list(options.notes)
    if calibration is None:
        calibration = inputs
        said.append(f"int8 was calibrated on the {len(inputs)} inputs that were timed: no calibration data was given.")
    subject = Subject(_prepared(module), inputs, calibration.float(), device, threads[0])
    original = check_subject(subject).numpy()
    name = options.name or type(module).__name__
    machine = describe_machine(device)

    with tempfile.TemporaryDirectory(prefix="lightning-perf-") as folder:
        work = Path(folder)
        place = Place(
            artefacts=work / "artefacts" if out is None else out,
            kept=out is not None,
            work=work,
            source=name,
            labels=tuple(options.labels),
            timeout_s=options.timeout_s,
        )
        _make_folder(place.artefacts)
        np.save(place.inputs, inputs.numpy())
        judge = Judge(validation, subject.input_shape, original.shape, work) if validation is not None else None
        chains = Chains(subject, fine_tune, work, on_progress)
        campaign = Campaign(parsed, subject, original, chains, judge, place, options.effort, on_progress)
        for number in threads:
            campaign.run(number, batch_sizes)
        said += judge.notes() if judge is not None else ()
    rows, cells = campaign.rows, campaign.cells
    machine = replace(machine, load_after=load_average())
    count, bound = _arithmetic(subject, batch_sizes[0], said)
    recommendation = None
    if options.max_latency_ms is not None or max_accuracy_drop_points is not None:
        recommendation = recommend(
            rows, cells[0], max_latency_ms=options.max_latency_ms, max_accuracy_drop_points=max_accuracy_drop_points
        )
    tradeoff = Tradeoff(
        schema_version=SCHEMA_VERSION,
        method_version=METHOD_VERSION,
        tool_version=__version__,
        model=name,
        input_shape=subject.input_shape,
        machine=machine,
        effort=options.effort,
        validation_inputs=None if validation is None else len(validation.inputs),
        notes=(*said, *condition_notes(machine, rows, cells)),
        rows=rows,
        cells=cells,
        recommendation=recommendation,
        count=count,
        roofline=bound,
    )
    return tradeoff if out is None else save_document(tradeoff, out)


def save_document(tradeoff: Tradeoff, folder: Path) -> Tradeoff:
    """Write a document beside the artefacts.

    Args:
        tradeoff: The document.
        folder: The folder of the artefacts.

    Returns:
        The document; with a note where it could not be written: the measurement is not lost with the file.
    """
    path = folder / TRADEOFF_FILE
    try:
        write_document(path, tradeoff)
    except OSError as error:
        note = f"{path} could not be written ({error.strerror})."
        return replace(tradeoff, notes=(*tradeoff.notes, note))
    return tradeoff


def _check_settings(batch_sizes: Sequence[int], threads: Sequence[int]) -> None:
    for what, values in (("batch sizes", batch_sizes), ("threads", threads)):
        if not values or min(values) < 1 or len(set(values)) != len(values):
            raise InferenceError(
                f"{what}: {', '.join(map(str, values)) or 'none'} given. Give different numbers above 0."
            )


def _prepared(module: nn.Module) -> nn.Module:
    """A copy of the model to study, so that its owner's stays as it is."""
    try:
        return copy.deepcopy(module).cpu().float().eval().requires_grad_(False)
    except Exception as error:  # copying runs code of the model's, which may raise anything
        raise InferenceError(f"{type(module).__name__} cannot be copied ({reason_of(error)}).") from error


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InferenceError(f"{folder}: cannot be made ({error.strerror}). Give another --out.") from error


def _arithmetic(subject: Subject, batch: int, notes: list[str]) -> tuple[Count | None, Roofline | None]:
    try:
        count = count_model(subject.module, subject.input_shape)
        batched = count_model(subject.module, subject.input_shape, batch)
    except InferenceError as error:
        notes.append(f"FLOPs were not counted: {error}")
        return None, None
    if count.uncounted:
        kinds = ", ".join(sorted({layer.kind for layer in count.uncounted}))
        notes.append(f"FLOPs are too few: no formula is known for operators in {kinds}.")
    peaks = find_peaks(subject.device, subject.threads, working_set_bytes=batched.compulsory_bytes)
    return count, bound_latency(batched, peaks)
