"""`Campaign`: build, check and time the variants of one model, even if some of them fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.measurement.accuracy import Judge
from lightning_perf.inference.measurement.measure import Effort, Rounds, summarise, take_turns
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.results.conclusions import cell_of
from lightning_perf.inference.results.tradeoff import Cell, Row
from lightning_perf.inference.variants.build import BuiltVariant, build_variant
from lightning_perf.inference.variants.chains import Chains, measure_storage
from lightning_perf.inference.variants.running import Running, relative_difference
from lightning_perf.inference.variants.variant import BASELINE, Variant
from lightning_perf.inference.variants.worker import Origin

AGAIN = f"{BASELINE} again"
"""The baseline's twin: the same artefact in another process, to measure the noise."""

SAME_OUTPUTS = 0.02
"""Largest allowed difference of float32 outputs from the original's, as a share of the largest output. Sums in another
order and TF32 stay well below it; another computation does not."""

WORTH_PACKING = 0.9
"""The compressed size is shown if it is below this share of the plain size; otherwise compression has no effect."""


@dataclass(frozen=True, kw_only=True)
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
    effort: Effort = field(default_factory=Effort)
    max_latency_ms: float | None = None
    max_accuracy_drop_points: float | None = None
    name: str | None = None
    labels: Sequence[str] = ()
    notes: Sequence[str] = ()
    out: Path | None = None
    timeout_s: float = 1800.0


class Campaign:
    """Builds, checks and times variants, the baseline first; `rows` and `cells` hold the results.

    `original` holds the outputs of the original on the subject's inputs, which the file `inputs` holds, too. There is a
    judge if there are validation data. Without ``options.out``, the artefacts go into `work`, which is temporary.
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        subject: Subject,
        original: NDArray[np.float32],
        chains: Chains,
        judges: Sequence[Judge],
        options: MeasureOptions,
        work: Path,
        on_progress: Callable[[str], None],
    ) -> None:
        self._variants = variants
        self._subject = subject
        self._original = original
        self._chains = chains
        self._judges = judges
        self._options = options
        self._work = work
        self._inputs = work / "inputs.npy"
        self._on_progress = on_progress
        self._rows = {variant.name: _empty_row(variant) for variant in variants}
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
            for variant in self._variants:
                if self._rows[variant.name].reason is None:
                    try:
                        self._start(variant, threads, running, stack)
                    except VariantError as error:
                        self._fail(variant.name, error)
            for batch in batch_sizes:
                self._time(running, threads, batch)

    def _start(self, variant: Variant, threads: int, running: dict[str, Running], stack: ExitStack) -> None:
        if reason := variant.runtime.missing(self._subject.device):
            raise VariantError(reason)
        self._on_progress(f"{variant.name}: building")
        built = self._build(variant, threads)
        process = self._run(built, threads, stack)
        reload = process.check_reload()
        row = self._rows[variant.name]
        if row.cold is None:
            row = replace(self._described(row, variant, built), cold=process.cold, reload=reload)
            self._rows[variant.name] = row
            _require_same_outputs(row)
            for judge in self._judges:
                self._on_progress(f"{variant.name}: accuracy on {judge.n} inputs")
                self._rows[variant.name] = replace(row, accuracy=judge.judge(process.predict))
        running[variant.name] = process
        if variant.name == BASELINE:
            running[AGAIN] = self._run(built, threads, stack)

    def _build(self, variant: Variant, threads: int) -> BuiltVariant:
        options = self._options
        folder = variant.name if not self._timed else f"{variant.name}@{threads}-threads"
        return build_variant(
            Origin(
                variant=variant.name,
                runtime=variant.runtime.name,
                transforms=tuple(transform.name for transform in variant.transforms),
                source=options.name or "",
                labels=tuple(options.labels),
            ),
            self._chains.subject_file(variant.transforms, threads),
            (options.out or self._work / "artefacts") / folder,
            self._work,
            threads=threads,
            timeout_s=options.timeout_s,
        )

    def _run(self, built: BuiltVariant, threads: int, stack: ExitStack) -> Running:
        process = Running(built, self._inputs, str(self._subject.device), threads, self._options.timeout_s)
        stack.callback(process.close)
        return process

    def _described(self, row: Row, variant: Variant, built: BuiltVariant) -> Row:
        module = self._chains.module(variant.transforms)
        return replace(
            row,
            folder=None if self._options.out is None else str(built.folder),
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            size_bytes=built.artefact.size_bytes,
            packed_bytes=_packed_bytes(module) if variant.transforms else None,
            build_s=built.seconds,
            output_error=relative_difference(np.load(built.outputs), self._original),
            provenance=built.artefact.provenance,
        )

    def _time(self, running: dict[str, Running], threads: int, batch: int) -> None:
        timers = {
            name: process.time for name, process in running.items() if name == AGAIN or self._rows[name].reason is None
        }
        self._on_progress(f"Timing {len(timers) - 1} variants in alternating rounds: batch {batch}, threads {threads}")
        turns = take_turns(timers, batch, self._options.effort, self._fail)
        baseline = turns[BASELINE]
        self._timed[threads, batch] = baseline, turns.pop(AGAIN)
        for name, rounds in turns.items():
            latency = summarise(rounds, None if name == BASELINE else baseline, batch=batch, threads=threads)
            self._rows[name] = replace(self._rows[name], latencies=(*self._rows[name].latencies, latency))

    def _fail(self, name: str, error: VariantError) -> None:
        if name in (BASELINE, AGAIN):
            raise InferenceError(f"The original itself cannot be measured: {error}") from error
        self._on_progress(f"{name}: {error}")
        self._rows[name] = replace(self._rows[name], reason=str(error))


def _packed_bytes(module: nn.Module) -> int | None:
    storage = measure_storage(module)
    return storage.gzip_bytes if storage.gzip_bytes < WORTH_PACKING * storage.dense_bytes else None


def _require_same_outputs(row: Row) -> None:
    """Check that the same weights in the same arithmetic give the same outputs: exporters may misread a model."""
    exact = not row.transforms and (row.provenance or {}).get("dtype") == "float32"
    if exact and row.output_error is not None and not row.output_error <= SAME_OUTPUTS:
        raise VariantError(
            f"its outputs differ from the original's by up to {row.output_error:.2g} of the largest output. Check "
            "whether the model's forward calls code outside of torch, or branches on values or on the batch size"
        )


def _empty_row(variant: Variant) -> Row:
    parts = [*(transform.summary for transform in variant.transforms), variant.runtime.summary]
    return Row(
        variant=variant.name,
        transforms=tuple(transform.name for transform in variant.transforms),
        runtime=variant.runtime.name,
        summary="; ".join(parts),
    )
