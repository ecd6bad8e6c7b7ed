from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.report.build import build_report
from lightning_perf.report.document import PerfReport
from lightning_perf.tensorboard.excerpt import excerpt_report, read_rows, read_tables
from tests.tensorboard.support import write_trace


@pytest.fixture
def report(tmp_path: Path) -> bytes:
    return build_report([write_trace(tmp_path / "a.json", kernels=30)]).to_json(indent=None).encode()


@pytest.fixture
def kept(tmp_path: Path, report: bytes) -> Path:
    path = tmp_path / "k.report"
    path.write_bytes(report)
    return path


def test_a_report_of_short_tables_stays_as_it_is(report: bytes) -> None:
    assert excerpt_report(report) == report


def test_long_tables_are_cut_and_say_so(report: bytes) -> None:
    whole = json.loads(report)
    for name in ("operators", "kernels"):
        whole["ranks"][0][name]["rows"] *= 50
    cut_report = excerpt_report(json.dumps(whole).encode())
    assert PerfReport.from_json(cut_report).verdict == PerfReport.from_json(report).verdict
    cut = json.loads(cut_report)
    assert cut.pop("truncated") == {"operators": 1500, "kernels": 1500}
    for name in ("operators", "kernels"):
        assert cut["ranks"][0][name]["rows"] == whole["ranks"][0][name]["rows"][:1000]
        cut["ranks"][0][name]["rows"] = whole["ranks"][0][name]["rows"]
    assert cut == whole


def test_many_ranks_share_the_rows(report: bytes) -> None:
    (rank,) = json.loads(report)["ranks"]
    document = {"ranks": [{name: rank[name] for name in ("operators", "kernels")}] * 300}
    cut = json.loads(excerpt_report(json.dumps(document).encode()))
    assert cut["truncated"] == {"operators": 30, "kernels": 30}
    assert {len(rank["kernels"]["rows"]) for rank in cut["ranks"]} == {20}


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("sort", ["name", "calls", "blocks_per_sm", "launchers"])
def test_pages_are_those_of_the_whole_sorted_table(kept: Path, report: bytes, sort: str, descending: bool) -> None:
    rows = json.loads(report)["ranks"][0]["kernels"]["rows"]
    rows[3]["blocks_per_sm"], rows[7]["blocks_per_sm"] = 4.0, 2.0
    document = json.loads(report)
    document["ranks"][0]["kernels"]["rows"] = rows
    kept.write_text(json.dumps(document))

    def key(row: dict[str, Any]) -> Any:
        return row[sort][0]["operator"] if sort == "launchers" else row[sort]

    valued = sorted((row for row in rows if row[sort] is not None), key=key, reverse=descending)
    expected = valued + [row for row in rows if row[sort] is None]
    paged: list[dict[str, Any]] = []
    for offset in range(0, 40, 8):
        page = read_rows(read_tables(kept), 0, "kernels", offset=offset, limit=8, sort=sort, descending=descending)
        assert (page.total, page.offset) == (30, offset)
        paged += page.rows
    assert paged == expected


def test_all_words_have_to_be_somewhere_in_a_row(kept: Path) -> None:
    found = read_rows(read_tables(kept), 0, "kernels", wanted="KERNEL op7")
    assert [row["name"] for row in found.rows] == ["kernel_0007"]  # the operator that launched it is in the row, too
    assert read_rows(read_tables(kept), 0, "kernels", wanted="kernel nothing").total == 0


@pytest.mark.parametrize(
    ("rank", "table", "sort", "missing"),
    [(1, "kernels", None, "rank 1"), (-1, "kernels", None, "rank -1"), (0, "kernels", "no_such", "no_such")],
)
def test_what_is_not_there_is_named(kept: Path, rank: int, table: Any, sort: str | None, missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        read_rows(read_tables(kept), rank, table, sort=sort)


def test_a_rank_without_the_table(kept: Path, report: bytes) -> None:
    document = json.loads(report)
    document["ranks"][0]["kernels"] = None
    kept.write_text(json.dumps(document))
    with pytest.raises(KeyError, match="kernels"):
        read_rows(read_tables(kept), 0, "kernels")
