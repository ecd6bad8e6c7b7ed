"""Fixtures of the plugin's tests."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from lightning_perf.tensorboard.cache import CACHE_VARIABLE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a part of TensorBoard warns of itself where it is imported first
    import tensorboard.backend.application  # noqa: F401


@pytest.fixture(autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache folder of its own for each test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """An empty log directory."""
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder
