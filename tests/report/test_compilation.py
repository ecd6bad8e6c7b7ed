"""The compilations of a fit in the report: unreadable files, and of several ranks."""

from pathlib import Path

import lightning_perf
from lightning_perf.run_files.fit.compilations import COMPILATIONS
from tests.findings import accounts, compilations
from tests.findings.compilations import SHAPES


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
