"""A history that both modules of tests use."""

import shutil
from pathlib import Path

import pytest

from tests.history.support import write_history


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_history(tmp_path_factory.mktemp("template"))


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "store")
