"""The parts of a report's page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lightning_perf.analysis.trust import Trust
from lightning_perf.report.sections.compilation import compilation_page
from lightning_perf.report.sections.fit_time import fit_time_page, step_times_section
from lightning_perf.report.sections.forecast import forecast_page
from lightning_perf.report.sections.fp32_comparison import shadow_page
from lightning_perf.report.sections.overview_page import overview_parts, summary
from lightning_perf.report.sections.precision import fp8_section, precision_pages
from lightning_perf.report.sections.rank_page import rank_parts
from lightning_perf.report.sections.ranks_page import ranks_parts
from lightning_perf.report.sections.report import out_of_memory_blocks, trust_block
from lightning_perf.show.blocks import EVERY_ROW, Block, Cell, Line, Table, table
from lightning_perf.statistics.ranks import Ratio
from lightning_perf.units import NOT_AVAILABLE, format_duration, format_ratio

if TYPE_CHECKING:
    from lightning_perf.report.document import PerfReport


def report_parts(report: PerfReport) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of a report's page. The name of a part of one rank ends with the rank's row."""
    parts = {**overview_parts(report), **ranks_parts(report)}
    if report.trust is not None:
        parts["trust"] = [trust_block(report.trust)]
        parts["windows"] = _windows(report.trust)
    if report.out_of_memory:
        parts["out_of_memory"] = out_of_memory_blocks(report.out_of_memory)
    if report.fit_time is not None:
        parts["fit_time"] = fit_time_page(report.fit_time)
    if report.compilation is not None:
        parts["compilation"] = compilation_page(report.compilation)
    if report.step_times is not None:
        parts["step_times"] = step_times_section(report.step_times)
    if report.precision is not None:
        parts |= precision_pages(report.precision)
    if report.fp8 is not None:
        parts["fp8"] = fp8_section(report.fp8, EVERY_ROW)
    if report.shadow is not None:
        parts["shadow"] = shadow_page(report.shadow)
    if report.forecast is not None:
        parts["forecast"] = forecast_page(report.forecast)
    for row, rank in enumerate(report.ranks):
        parts[f"summary.{row}"] = summary(report, rank)
        parts |= {f"{name}.{row}": blocks for name, blocks in rank_parts(rank).items()}
    return parts


def _windows(trust: Trust) -> Iterator[Block]:
    """Yield the effect of each window of the profiler on the run."""
    if trust.windows:
        yield _window_table(trust)
    if trust.windows and trust.analysis_ns is not None:
        yield Line(f"The analysis took {format_duration(trust.analysis_ns)}.", "quiet")


def _window_table(trust: Trust) -> Table:
    back = {True: "yes", False: "no", None: "unknown"}
    return table(
        ("steps", "step before", "inside", "after", "inside / before", "after / before", "recovered", "cost"),
        (
            (
                f"{each.window.first_step} – {each.window.last_step}"
                + (f" ({each.window.capture})" if each.window.capture else ""),
                each.before_ns,
                each.inside_ns,
                each.after_ns,
                _ratio(each.overhead),
                _ratio(each.lasting),
                Cell(back[each.returned], troubled=each.returned is False),
                each.cost_ns,
            )
            for each in trust.windows
        ),
        "Effect of the profiler on the run",
        "name duration duration duration figure figure text duration",
        definition="profiler-cost",
    )


def _ratio(ratio: Ratio | None) -> Cell:
    if ratio is None:
        return Cell(NOT_AVAILABLE)
    low, high = format_ratio(ratio.low), format_ratio(ratio.high)
    return Cell(f"{format_ratio(ratio.estimate)} ({low} – {high})", ratio.estimate)
