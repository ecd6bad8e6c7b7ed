"""`Campaign`: build, check and time the variants of one model, even if some of them fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.judge import Judge
from lightning_perf.inference.measurement.measure import Effort, Rounds, summarise, take_turns
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.results.summary import cell_of
from lightning_perf.inference.results.tradeoff import Cell, Row
from lightning_perf.inference.variants.build import BuiltVariant, build_variant
from lightning_perf.inference.variants.chains import Chains
from lightning_perf.inference.variants.running import Running, relative_difference
from lightning_perf.inference.variants.variant import BASELINE, Variant

__all__ = ["Campaign", "Place"]

AGAIN = f"{BASELINE} again"
"""The baseline's twin: the same artefact in another process, to measure the noise."""

SAME_OUTPUTS = 0.02
"""Largest allowed difference of float32 outputs from the original's, as a share of the largest output. Sums in another
order and TF32 stay well below it; another computation does not."""

WORTH_PACKING = 0.9
"""The packed size is shown if it is below this share of the plain size; otherwise packing has no effect."""


@dataclass(frozen=True)
class Place:
    """Folders of a campaign, and the facts that go into its artefacts.

    Attributes:
        artefacts: Folder of the artefacts.
        kept: Whether that folder is kept.
        work: Folder for temporary files, such as the inputs, ``inputs.npy``.
        source: Name of the model.
        labels: Names of its classes.
        timeout_s: Timeout of each step of one variant.
    """

    artefacts: Path
    kept: bool
    work: Path
    source: str
    labels: tuple[str, ...]
    timeout_s: float

    @property
    def inputs(self) -> Path:
        """File of the inputs for timing and for comparing outputs."""
        return self.work / "inputs.npy"


@dataclass(frozen=True)
class _Timed:
    """Rounds of the baseline and of its twin, for one batch size and number of threads."""

    threads: int
    batch: int
    baseline: Rounds
    again: Rounds


class Campaign:
    """Builds, checks and times variants; `rows` and `cells` hold the results.

    Args:
        variants: The variants, the baseline first.
        subject: The original.
        original: Outputs of the original on the subject's inputs.
        chains: Applies transforms.
        judge: Measures accuracy; None without validation data.
        place: Folders, and facts for the artefacts.
        effort: Number and duration of the timed calls.
        on_progress: Called with each line of progress.
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        subject: Subject,
        original: NDArray[np.float32],
        chains: Chains,
        judge: Judge | None,
        place: Place,
        effort: Effort,
        on_progress: Callable[[str], None],
    ) -> None:
        self._variants = variants
        self._subject = subject
        self._original = original
        self._chains = chains
        self._judge = judge
        self._place = place
        self._effort = effort
        self._on_progress = on_progress
        self._rows = {variant.name: _empty_row(variant) for variant in variants}
        self._timed: list[_Timed] = []

    @property
    def rows(self) -> tuple[Row, ...]:
        """One row per variant, with the results so far."""
        return tuple(self._rows.values())

    @property
    def cells(self) -> tuple[Cell, ...]:
        """One cell per batch size and number of threads so far, over the variants that have not failed."""
        return tuple(
            cell_of(self.rows, threads=timed.threads, batch=timed.batch, baseline=timed.baseline, again=timed.again)
            for timed in self._timed
        )

    def run(self, threads: int, batch_sizes: Sequence[int]) -> None:
        """Build, start and time all variants for one number of threads.

        Raises:
            InferenceError: The original itself cannot be measured.
        """
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
            if self._judge is not None:
                self._on_progress(f"{variant.name}: accuracy on {self._judge.n} inputs")
                row = replace(row, accuracy=self._judge.judge(process))
            self._rows[variant.name] = row
        running[variant.name] = process
        if variant.name == BASELINE:
            running[AGAIN] = self._run(built, threads, stack)

    def _build(self, variant: Variant, threads: int) -> BuiltVariant:
        folder = variant.name if not self._timed else f"{variant.name}@{threads}-threads"
        return build_variant(
            variant,
            self._chains.subject_file(variant.transforms, threads),
            self._place.artefacts / folder,
            self._place.work,
            source=self._place.source,
            labels=self._place.labels,
            threads=threads,
            timeout_s=self._place.timeout_s,
        )

    def _run(self, built: BuiltVariant, threads: int, stack: ExitStack) -> Running:
        process = Running(built, self._place.inputs, str(self._subject.device), threads, self._place.timeout_s)
        stack.callback(process.close)
        return process

    def _described(self, row: Row, variant: Variant, built: BuiltVariant) -> Row:
        module = self._chains.module(variant.transforms)
        packed = None
        if variant.transforms:
            storage = self._chains.storage(variant.transforms)
            if storage.packed_bytes < WORTH_PACKING * storage.dense_bytes:
                packed = storage.packed_bytes
        return replace(
            row,
            folder=str(built.folder) if self._place.kept else None,
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            size_bytes=built.artefact.size_bytes,
            packed_bytes=packed,
            build_s=built.seconds,
            output_error=relative_difference(np.load(built.outputs), self._original),
            provenance=built.artefact.provenance,
        )

    def _time(self, running: dict[str, Running], threads: int, batch: int) -> None:
        timers = {
            name: process.time for name, process in running.items() if name == AGAIN or self._rows[name].reason is None
        }
        self._on_progress(f"Timing {len(timers) - 1} variants in alternating rounds: batch {batch}, threads {threads}")
        turns = take_turns(timers, batch, self._effort, self._fail)
        for name, rounds in turns.items():
            if name != AGAIN:
                baseline = None if name == BASELINE else turns[BASELINE]
                latency = summarise(rounds, baseline, batch=batch, threads=threads)
                row = self._rows[name]
                self._rows[name] = replace(row, latencies=(*row.latencies, latency))
        self._timed.append(_Timed(threads, batch, turns[BASELINE], turns[AGAIN]))

    def _fail(self, name: str, error: VariantError) -> None:
        if name in (BASELINE, AGAIN):
            raise InferenceError(f"The original itself cannot be measured: {error}") from error
        self._on_progress(f"{name}: {error}")
        self._rows[name] = replace(self._rows[name], reason=str(error))


def _require_same_outputs(row: Row) -> None:
    """Check that the same weights in the same arithmetic give the same outputs: exporters may misread a model.

    Raises:
        VariantError: They do not.
    """
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
