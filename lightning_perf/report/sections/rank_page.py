"""The parts of one rank on a report's page that the console shows in fewer words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lightning_perf.analysis.host.loading import Loading
from lightning_perf.analysis.model.optimizers import OptimizerSteps
from lightning_perf.analysis.precision.amp_gain import AmpGain
from lightning_perf.analysis.precision.autocast_tax import AutocastTax
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.savings import each
from lightning_perf.report.sections.device import cast_sentences, sync_table
from lightning_perf.report.sections.language_model import language_model_sections
from lightning_perf.report.sections.rank import device_regions
from lightning_perf.report.sentences import batch_sentences
from lightning_perf.show.blocks import EVERY_ROW, Block, Heading, Line, table
from lightning_perf.units import format_bytes, format_count, format_duration

MADE_BY = {"in_process": "the training process itself (num_workers=0)", "workers": "worker processes"}

PARTS = {
    "products": "products and convolutions without Tensor Cores",
    "products on Tensor Cores": "products and convolutions in TF32",
    "following": "kernels that read their results",
    "fixed": "unchanged kernels",
    "in 16 bits": "kernels in 16 bits or fewer already",
}


def rank_parts(rank: RankAnalysis) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of one rank."""
    of_what = each(rank)
    parts: dict[str, Iterable[Block]] = {
        "language_model": language_model_sections(rank, EVERY_ROW),
        "regions": device_regions(rank, EVERY_ROW),
    }
    if rank.sync_points is not None and rank.sync_points.points:
        heading = Heading(f"Waits of the host for the device, {of_what}", definition="sync-point")
        parts["sync"] = [heading, sync_table(rank.sync_points)]
    if rank.amp_gain is not None:
        parts["gain"] = _gain(rank.amp_gain, of_what)
    if rank.autocast is not None:
        parts["casts"] = _casts(rank.autocast, of_what)
    if rank.loading is not None:
        parts["loading"] = _loading(rank.loading, of_what)
    if rank.optimizer is not None:
        parts["optimizer"] = _optimizer(rank.optimizer, of_what)
    for place, device in enumerate(() if rank.memory is None else rank.memory.devices):
        parts[f"batch_{place}"] = map(Line, batch_sentences(device))
    return parts


def _gain(gain: AmpGain, of_what: str) -> Iterator[Block]:
    """Yield the saving that mixed precision would bring, and the parts of the compute time that it comes from."""
    steps = max(gain.steps, 1)
    yield Heading("Predicted gain of mixed precision", definition="gain-of-mixed-precision")
    known = f"By the peak rates of {gain.device}" if gain.device else "By general factors: peak rates are not known"
    yield Line(known, "quiet")
    least, most, step = map(format_duration, (gain.least_saving_ns, gain.most_saving_ns, gain.step_ns))
    saved = f"{least} to {most}" if gain.least_saving_ns > 0 else f"Up to {most}"
    casts = f"casts of the weights cost {format_duration(gain.casts_ns)}"
    none = f"No saving of {step} {of_what}."
    yield Line(f"{saved} of {step} {of_what}; {casts}." if gain.most_saving_ns > 0 else none)
    yield table(
        ("part", "kernels", "now", "mixed, at best", "mixed, at worst"),
        (
            (
                PARTS.get(part.name, part.name),
                part.kernels / steps,
                *(time_ns / steps for time_ns in (part.time_ns, part.fastest_ns, part.slowest_ns)),
            )
            for part in gain.parts
        ),
        kinds="name count duration duration duration",
    )


def _casts(tax: AutocastTax, of_what: str) -> Iterator[Block]:
    steps = max(tax.steps, 1)
    yield Heading(f"Casts between floating-point types, {of_what}", definition="autocast-tax")
    if tax.missing or not tax.count:
        yield Line(f"Not known: {tax.missing}." if tax.missing else "No casts.", "quiet")
        return
    yield from map(Line, cast_sentences(tax))
    rows = (
        (f"{cast.source.upper()} – {cast.target.upper()}", cast.count / steps, cast.time_ns / steps)
        for cast in tax.casts
    )
    yield table(("from – to", "casts", "time"), rows, kinds="name count duration")


def _loading(loading: Loading, of_what: str) -> Iterator[Block]:
    """Yield how batches are fetched and moved."""
    steps = max(loading.steps, 1)
    yield Heading(f"Batch loading, {of_what}", definition="batch-loading")
    yield Line(MADE_BY.get(str(loading.loader), "not in the recording"), label="Batches made by")
    yield Line(format_count(loading.fetches / steps), label="Fetches")
    yield Line(format_duration(loading.fetch_ns / steps), label="Time in fetches")
    yield Line(format_duration(loading.operator_ns / steps), label="of it in operators")
    if loading.pageable_copies:
        size, time = format_bytes(loading.pageable_bytes / steps), format_duration(loading.pageable_ns / steps)
        copies = format_count(loading.pageable_copies / steps)
        yield Line(f"{copies}, {size} in {time}", label="Copies from pageable memory")


def _optimizer(found: OptimizerSteps, of_what: str) -> Iterator[Block]:
    steps = max(found.steps, 1)
    kind = f" ({found.implementation})" if found.implementation else ""
    yield Heading(f"Optimizer, {of_what}", definition="optimizer-step")
    yield Line(f"{found.name}{kind}", label="Optimizer")
    yield Line(format_count(found.operators / steps), label="Operators")
    yield Line(format_count(found.launches / steps), label="Launches")
    yield Line(format_duration(found.host_ns / steps), label="On the host")
    if found.launches:
        yield Line(format_duration(found.device_ns / steps), label="On the device")
