"""Names of any length: patterns see only their first characters, and documents keep them whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.kernels.kernel_names import is_product, kernel_arithmetic, moves_data
from lightning_perf.analysis.ranks import communication
from lightning_perf.analysis.steps import breakdown
from lightning_perf.report.build import build_report
from lightning_perf.trace.assembly import Destination, device_kind
from lightning_perf.trace.columns import MATCHED_CHARACTERS
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

# Each repeats the start of a pattern whose time grows with the square or the cube of the name's length.
UNITS = [
    "grad",
    "sm80_xmma__f32f32_f32_",
    "bmm__E2m1",
    "nvjet_",
    "flash::",
    "Cijk_Aa_Ba_H",
    "cutlass_80_tensorop_s1688",
]

CLASSIFIERS: list[Callable[[str], Any]] = [
    is_product,
    moves_data,
    kernel_arithmetic,
    communication.collective_kind,
    breakdown.mark_phase,
    breakdown.is_backward_node,
    breakdown.call_kind,
    lambda name: device_kind(Destination.KERNEL, name, ""),
]


@pytest.mark.parametrize("unit", UNITS)
def test_a_long_name_counts_as_its_first_characters(unit: str) -> None:
    name = unit * (1_000_000 // len(unit))
    for classify in CLASSIFIERS:
        assert classify(name) == classify(name[:MATCHED_CHARACTERS])


def test_a_report_keeps_a_long_name_whole(tmp_path: Path) -> None:
    kernel, operator = "grad" * 16_384, "aten::" + "conv" * 16_384
    builder = TraceBuilder().gpu("GPU").step(1, 0, 100)
    builder.op(operator, 10, 5)
    builder.launch(kernel, call_us=11, call_duration_us=1, start_us=20, duration_us=40)
    report = build_report([builder.write(tmp_path / "a.pt.trace.json")])
    kernels = known(report.ranks[0].kernels)
    assert [row.name for row in kernels.rows] == [kernel]
