"""Fixtures of the plugin's tests."""

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_perf.run_files.user_cache import CACHE_VARIABLE
from lightning_perf.tensorboard.routes import page_assets, perfetto_assets

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


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if no other package were installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for table in (page_assets, perfetto_assets):
        table.cache_clear()
    yield
    for table in (page_assets, perfetto_assets):
        table.cache_clear()
