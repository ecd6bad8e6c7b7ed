"""The compilations of a fit in the report: console, Markdown, JSON, old documents, and unreadable files."""

import io
from pathlib import Path

import lightning_perf
from lightning_perf import PerfReport
from lightning_perf.run_files.fit.compilations import COMPILATIONS
from tests.findings import accounts, compilations
from tests.findings.compilations import BROKEN, SHAPES, SKIPPED, analyzed


def printed(report: PerfReport, width: int = 80) -> str:
    text = io.StringIO()
    report.print(file=text, width=width)
    return text.getvalue()


def test_the_console_has_a_section(tmp_path: Path) -> None:
    text = printed(analyzed(tmp_path, *SHAPES, *BROKEN, *SKIPPED))
    section = text[text.index("\nCompilation\n") :]
    for part in (
        "2 of them were recompilations, 8.00 s in all.",
        "Inductor's cache had 0 of 14 graphs.",
        "Recompilations\n",
        "  2  8.00 s ",
        "Graph breaks\n",
        "scale.item()",
        "Without a CUDA graph\n",
        "mutated inputs",
    ):
        assert part in section
    assert max(map(len, text.splitlines())) <= 80


def test_a_damaged_file_is_left_out_with_a_note(tmp_path: Path) -> None:
    compilations.recompiling(tmp_path)
    COMPILATIONS.path(tmp_path, 0).write_text('{"compile_id":7}\n{}\n', encoding="utf-8")
    report = lightning_perf.analyze(tmp_path)
    assert report.compilation is None
    assert any(note.startswith("The compilations are left out: ") for note in report.notes)


def test_the_first_rank_that_compiled_is_shown(tmp_path: Path) -> None:
    COMPILATIONS.append(COMPILATIONS.path(tmp_path, 1), *SHAPES)
    report = accounts.report_of(accounts.account(), tmp_path)
    assert report.compilation is not None
    assert report.compilation.rank == 1
