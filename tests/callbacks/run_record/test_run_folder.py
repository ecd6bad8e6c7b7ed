"""The folder of a fit."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.run_record.run_folder import claim_run_folder


def trainer(log_dir: object, *, rank: int = 0, broadcast: object = None) -> SimpleNamespace:
    return SimpleNamespace(
        log_dir=log_dir,
        default_root_dir="/nowhere",
        is_global_zero=rank == 0,
        global_rank=rank,
        strategy=SimpleNamespace(broadcast=lambda value: value if rank == 0 else broadcast),
    )


def test_other_ranks_take_the_folder_of_rank_0(tmp_path: Path) -> None:
    folder = claim_run_folder(trainer(str(tmp_path)), None, ErrorReporter())
    assert folder == tmp_path / "perf"
    (folder / "x").touch()
    assert claim_run_folder(trainer(str(tmp_path), rank=1, broadcast=str(folder)), None, ErrorReporter()) == folder


@pytest.mark.parametrize("log_dir", ["s3://bucket/logs", "/proc/nothing/here"])
def test_no_folder_is_one_warning_that_says_what_to_do(log_dir: str) -> None:
    with pytest.warns(RuntimeWarning, match="dirpath"):
        assert claim_run_folder(trainer(log_dir), None, ErrorReporter()) is None


def test_a_given_folder_is_taken(tmp_path: Path) -> None:
    assert claim_run_folder(trainer("s3://bucket"), os.fspath(tmp_path / "mine"), ErrorReporter()) == tmp_path / "mine"


def test_a_logger_without_a_folder(tmp_path: Path) -> None:
    class Odd(SimpleNamespace):
        @property
        def log_dir(self) -> str:
            raise AttributeError("save_dir")

    settings = {**vars(trainer(None)), "default_root_dir": str(tmp_path)}
    odd = Odd(**{name: value for name, value in settings.items() if name != "log_dir"})
    with pytest.warns(RuntimeWarning, match="the logger has no folder"):
        assert claim_run_folder(odd, None, ErrorReporter()) == tmp_path / "perf"
