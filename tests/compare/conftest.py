"""Arms of a comparison that several modules of tests use."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_perf.compare.records.record import RunRecord
from tests.compare.support import write_arms


@pytest.fixture
def arms(tmp_path: Path) -> Callable[..., dict[str, list[RunRecord]]]:
    """Leave two arms of runs below the test's folder; see `write_arms`."""
    return functools.partial(write_arms, tmp_path)
