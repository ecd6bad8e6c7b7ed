"""The parts of a trade-off's page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lightning_perf.inference.results.blocks import accuracy_table, cold_table, latency_table, layer_table
from lightning_perf.inference.results.layers_page import forward_pass, least_time
from lightning_perf.show.blocks import EVERY_ROW, Block, Heading, Line, Span, Style, Table, listing, table
from lightning_perf.units import format_milliseconds

if TYPE_CHECKING:
    from lightning_perf.inference.results.tradeoff import Cell, Tradeoff


def tradeoff_parts(tradeoff: Tradeoff) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of a trade-off's page. The name of a part of a cell ends with the cell's place."""
    count = tradeoff.count
    settings = (
        (
            row.variant,
            row.summary,
            ", ".join(f"{name} {value}" for name, value in (row.provenance or {}).items()),
            row.reason or "",
        )
        for row in tradeoff.rows
    )
    failed = (Line((Span(row.variant, "strong"), f" {row.reason}")) for row in tradeoff.rows if row.reason is not None)
    failures = tuple(listing(failed))
    heads = ("variant", "description", "settings", "reason for no measurement")
    parts: dict[str, Iterable[Block]] = {
        "recommendation": _recommendation(tradeoff),
        "context": [Line(" · ".join(_context(tradeoff)), "quiet")],
        "failures": [Heading("Not or only partly measured"), *failures] if failures else [],
        "outputs": [accuracy_table(tradeoff)],
        "cold": [cold_table(tradeoff)],
        "how": [table(heads, settings, "Settings", "name text text text")],
        "machine": [Heading("Machine and method"), *_machine(tradeoff)],
        "forward_pass": [] if count is None else forward_pass(tradeoff, count),
        "least_time": [] if tradeoff.roofline is None else least_time(tradeoff.roofline),
        "layers": [] if count is None else [layer_table(count, tradeoff.roofline, EVERY_ROW)],
    }
    return parts | {f"calls.{place}": [_calls(tradeoff, cell)] for place, cell in enumerate(tradeoff.cells)}


def _calls(tradeoff: Tradeoff, cell: Cell) -> Table:
    """Return the latencies for one batch size and number of threads, the recommended variant first."""
    latencies = latency_table(tradeoff, cell)
    first = tradeoff.recommendation.variant if tradeoff.recommendation is not None else None
    return replace(latencies, rows=tuple(sorted(latencies.rows, key=lambda row: row[0].text != first)))


def _recommendation(tradeoff: Tradeoff) -> Iterator[Line]:
    found = tradeoff.recommendation
    if found is None:
        return
    style: Style = "good" if found.variant else "strong"
    yield Line(found.variant or "none of them", style, label="Deploy", label_style="strong")
    yield Line(found.reason, label="Why", label_style="strong")
    most_ms, drop = found.max_latency_ms, found.max_accuracy_drop_points
    limits = [] if most_ms is None else [f"p90 latency at most {format_milliseconds(most_ms)}"]
    limits += [] if drop is None else [f"accuracy drop at most {drop:g} {'point' if drop == 1 else 'points'}"]
    if limits:
        yield Line("; ".join(limits), label="Limits", label_style="strong")


def _context(tradeoff: Tradeoff) -> Iterator[str]:
    machine = tradeoff.machine
    yield tradeoff.model
    yield f"inputs {'×'.join(map(str, tradeoff.input_shape))}"
    yield "float32 originals"
    yield from dict.fromkeys((machine.device, machine.cpu))
    if "torch" in machine.versions:
        yield f"torch {machine.versions['torch']}"
    yield f"lightning_perf {tradeoff.tool_version}"


def _machine(tradeoff: Tradeoff) -> Iterator[Line]:
    machine, effort = tradeoff.machine, tradeoff.effort
    yield Line(machine.device, label="Device")
    yield Line(f"{machine.cpu}, {machine.cpus} usable", label="Processor")
    yield Line(machine.platform, label="System")
    if machine.load_before is not None and machine.load_after is not None:
        yield Line(f"{machine.load_before:.2f} before, {machine.load_after:.2f} after", label="Load average")
    yield Line(", ".join(f"{name} {version}" for name, version in machine.versions.items()), label="Versions")
    what = "variant, batch size and number of threads"
    rounds = f"in {effort.rounds} rounds (method {tradeoff.method_version})"
    yield Line(f"{effort.seconds:g} s per {what}, {rounds}", label="Effort")
