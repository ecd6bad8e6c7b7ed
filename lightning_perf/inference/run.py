"""Measure every variant of a model, even if some of them fail, and return the trade-off table."""

from __future__ import annotations

import copy
import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_perf import __version__
from lightning_perf.errors import reason_of
from lightning_perf.inference.counting.count import count_model, find_peaks
from lightning_perf.inference.counting.document import Count, Roofline, bound_latency
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.measurement.measure import Effort, Judge, Rounds, summarise, take_turns
from lightning_perf.inference.model import Subject, Validation, check_subject, usable_device
from lightning_perf.inference.results.conclusions import (
    NO_LIMIT_WITHOUT_DATA,
    cell_of,
    condition_notes,
    recommend,
    ruin_notes,
)
from lightning_perf.inference.results.tradeoff import METHOD_VERSION, SCHEMA_VERSION, Cell, Machine, Row, Tradeoff
from lightning_perf.inference.transforms import FineTune
from lightning_perf.inference.variants.artefact import library_versions
from lightning_perf.inference.variants.running import BuiltVariant, Origin, Running, build_variant, relative_difference
from lightning_perf.inference.variants.variant import (
    BASELINE,
    Chains,
    Variant,
    default_variants,
    measure_storage,
    parse_variants,
)
from lightning_perf.machine.environment import cpu_name, device_facts, host_notes, load_average
from lightning_perf.run_files.atomic import write_document

AGAIN = f"{BASELINE} again"
"""The baseline's twin: the same artefact in another process, to measure the noise."""

SAME_OUTPUTS = 0.02
"""Largest allowed difference of float32 outputs from the original's, as a share of the largest output. Sums in another
order and TF32 stay well below it; another computation does not."""

WORTH_PACKING = 0.9
"""The compressed size is shown if it is below this share of the plain size; otherwise compression has no effect."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """Options of `measure_variants`.

    Attributes:
        variants: Names for `parse_variant`; the original is always measured first. None means `default_variants`.
        batch_sizes: Inputs per call. The first batch size and the first of `threads` decide the recommendation.
        threads: CPU threads; everything is built and measured again for each number.
        device: The device to run variants on.
        effort: Number and duration of the timed calls.
        max_latency_ms: Recommend a variant with a p90 latency of at most this many milliseconds.
        max_accuracy_drop_points: Recommend a variant that loses at most this many percentage points of accuracy.
        name: Name of the model; the name of its class if not given.
        labels: Names of the classes, which the artefacts keep.
        notes: Remarks for the reader of the document.
        out: Folder for the artefacts and ``tradeoff.json``; if not given, nothing is kept.
        timeout_s: Timeout for building a variant, for loading it, and for predicting the validation data.
    """

    variants: Sequence[str] | None = None
    batch_sizes: Sequence[int] = (1, 32)
    threads: Sequence[int] = (1,)
    device: torch.device | str = "cpu"
    effort: Effort = dataclasses.field(default_factory=Effort)
    max_latency_ms: float | None = None
    max_accuracy_drop_points: float | None = None
    name: str | None = None
    labels: Sequence[str] = ()
    notes: Sequence[str] = ()
    out: Path | None = None
    timeout_s: float = 1800.0


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
        versions=library_versions(),
    )


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
    options = dataclasses.replace(options, name=options.name or type(module).__name__)
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
            try:
                options.out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InferenceError(
                    f"{options.out} cannot be created ({error.strerror}). Give another --out."
                ) from error
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
        recommendation=recommend(
            rows,
            cells[0],
            max_latency_ms=options.max_latency_ms,
            max_accuracy_drop_points=options.max_accuracy_drop_points,
            doubt=next(iter(doubts), None),
        ),
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


def _prepared(module: nn.Module) -> nn.Module:
    """Return a copy of the model to study, so that the caller's model stays unchanged."""
    try:
        return copy.deepcopy(module).cpu().float().eval().requires_grad_(False)
    except Exception as error:  # copying runs code of the model's, which may raise anything
        raise InferenceError(f"{type(module).__name__} cannot be copied ({reason_of(error)}).") from error


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
    latencies = ((row, row.latency(subject.threads, batch)) for row in rows if row.is_exact)
    fastest = min(((latency.p10_ms, row.variant) for row, latency in latencies if latency is not None), default=None)
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


@dataclasses.dataclass
class Campaign:
    """Builds, checks and times variants, the baseline first; `rows` and `cells` hold the results.

    There is a judge if there are validation data. Without ``options.out``, the artefacts go into `work`, which is
    temporary. `original` has the outputs of the original on the subject's inputs.
    """

    variants: Sequence[Variant]
    subject: Subject
    original: NDArray[np.float32]
    chains: Chains
    judges: Sequence[Judge]
    options: MeasureOptions
    work: Path
    on_progress: Callable[[str], None]

    def __post_init__(self) -> None:
        self._rows = {each.name: Row(each.name, each.chain, each.runtime.name, each.summary) for each in self.variants}
        self._timed: dict[tuple[int, int], tuple[Rounds, Rounds]] = {}

    @property
    def rows(self) -> tuple[Row, ...]:
        """One row per variant, with the results so far."""
        return tuple(self._rows.values())

    @property
    def cells(self) -> tuple[Cell, ...]:
        """One cell per batch size and number of threads so far, over the variants that have not failed."""
        return tuple(
            cell_of(self.rows, threads=threads, batch=batch, baseline=baseline, again=again)
            for (threads, batch), (baseline, again) in self._timed.items()
        )

    def run(self, threads: int, batch_sizes: Sequence[int]) -> None:
        """Build, start and time all variants for one number of threads."""
        running: dict[str, Running] = {}
        with ExitStack() as stack:
            for variant in self.variants:
                if self._rows[variant.name].reason is None:
                    try:
                        self._start(variant, threads, running, stack)
                    except VariantError as error:
                        self._fail(variant.name, error)
            for batch in batch_sizes:
                self._time(running, threads, batch)

    def _start(self, variant: Variant, threads: int, running: dict[str, Running], stack: ExitStack) -> None:
        if reason := variant.runtime.missing(self.subject.device):
            raise VariantError(reason)
        self.on_progress(f"{variant.name}: building")
        built = self._build(variant, threads)
        process = self._run(built, threads, stack)
        reload = process.check_reload()
        row = self._rows[variant.name]
        if row.cold is None:
            row = replace(self._described(row, variant, built), cold=process.cold, reload=reload)
            self._rows[variant.name] = row
            _require_same_outputs(row)
            for judge in self.judges:
                self.on_progress(f"{variant.name}: accuracy on {judge.n} inputs")
                self._rows[variant.name] = replace(row, accuracy=judge.judge(process.predict))
        running[variant.name] = process
        if variant.name == BASELINE:
            running[AGAIN] = self._run(built, threads, stack)

    def _build(self, variant: Variant, threads: int) -> BuiltVariant:
        options = self.options
        folder = variant.name if not self._timed else f"{variant.name}@{threads}-threads"
        return build_variant(
            Origin(
                variant=variant.name,
                runtime=variant.runtime.name,
                transforms=variant.chain,
                source=options.name or "",
                labels=tuple(options.labels),
            ),
            self.chains.subject_file(variant.transforms, threads),
            (options.out or self.work / "artefacts") / folder,
            self.work,
            threads=threads,
            timeout_s=options.timeout_s,
        )

    def _run(self, built: BuiltVariant, threads: int, stack: ExitStack) -> Running:
        process = Running(built, self.work / "inputs.npy", str(self.subject.device), threads, self.options.timeout_s)
        stack.callback(process.close)
        return process

    def _described(self, row: Row, variant: Variant, built: BuiltVariant) -> Row:
        module = self.chains.module(variant.transforms)
        return replace(
            row,
            folder=None if self.options.out is None else str(built.folder),
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            size_bytes=built.artefact.size_bytes,
            packed_bytes=_packed_bytes(module) if variant.transforms else None,
            build_s=built.seconds,
            output_error=relative_difference(np.load(built.outputs), self.original),
            provenance=built.artefact.provenance,
        )

    def _time(self, running: dict[str, Running], threads: int, batch: int) -> None:
        timers = {
            name: process.time for name, process in running.items() if name == AGAIN or self._rows[name].reason is None
        }
        self.on_progress(f"Timing {len(timers) - 1} variants in alternating rounds: batch {batch}, threads {threads}")
        turns = take_turns(timers, batch, self.options.effort, self._fail)
        baseline = turns[BASELINE]
        self._timed[threads, batch] = baseline, turns.pop(AGAIN)
        for name, rounds in turns.items():
            latency = summarise(rounds, None if name == BASELINE else baseline, batch=batch, threads=threads)
            self._rows[name] = replace(self._rows[name], latencies=(*self._rows[name].latencies, latency))

    def _fail(self, name: str, error: VariantError) -> None:
        if name in (BASELINE, AGAIN):
            raise InferenceError(f"The original itself cannot be measured: {error}") from error
        self.on_progress(f"{name}: {error}")
        self._rows[name] = replace(self._rows[name], reason=str(error))


def _packed_bytes(module: nn.Module) -> int | None:
    storage = measure_storage(module)
    return storage.gzip_bytes if storage.gzip_bytes < WORTH_PACKING * storage.dense_bytes else None


def _require_same_outputs(row: Row) -> None:
    """Check that the same weights in the same arithmetic give the same outputs: exporters may misread a model."""
    if row.is_exact and row.output_error is not None and not row.output_error <= SAME_OUTPUTS:
        raise VariantError(
            f"its outputs differ from the original's by up to {row.output_error:.2g} of the largest output. Check "
            "whether the model's forward calls code outside of torch, or branches on values or on the batch size"
        )
