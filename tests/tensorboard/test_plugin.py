import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.application import TensorBoardWSGIApp
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from lightning_perf.tensorboard.plugin import PerfPlugin
from tests.tensorboard.support import write_trace


def application(logdir: Path) -> Client:
    """TensorBoard's application with this plugin, put together as TensorBoard does it."""
    flags = SimpleNamespace(logdir=str(logdir), logdir_spec="", path_prefix="", samples_per_plugin={}, window_title="")
    return Client(TensorBoardWSGIApp(flags, [PerfPlugin]))


def test_tensorboard_finds_it() -> None:
    try:
        metadata.distribution("lightning-perf")
    except metadata.PackageNotFoundError:
        pytest.skip("needs the package installed: pip install -e .")
    (entry,) = (entry for entry in metadata.entry_points(group="tensorboard_plugins") if entry.name == "lightning_perf")
    assert entry.load() is PerfPlugin
    assert issubclass(PerfPlugin, base_plugin.TBPlugin)


def test_importing_it_loads_next_to_nothing() -> None:
    code = (
        "import sys, json\nfrom tensorboard.plugins import base_plugin\nbefore = set(sys.modules)\n"
        "import lightning_perf.tensorboard.plugin\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    loaded = {name for name in json.loads(done.stdout) if name.startswith("lightning_perf")}
    assert loaded == {"lightning_perf", "lightning_perf.tensorboard", "lightning_perf.tensorboard.plugin"}
    assert not {"torch", "numpy", "msgspec", "fsspec", "plotly"} & set(json.loads(done.stdout))


def test_serving_loads_no_torch(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    code = (
        "import sys\nfrom types import SimpleNamespace as S\nfrom werkzeug.test import Client\n"
        "from tensorboard.backend.application import TensorBoardWSGI\n"
        "from lightning_perf.tensorboard.plugin import PerfPlugin\n"
        f"client = Client(TensorBoardWSGI([PerfPlugin(S(logdir={str(logdir)!r}, flags=None))]))\n"
        "address = '/data/plugin/lightning_perf/data/'\n"
        "assert client.get(address + 'runs').json['runs']\n"
        "assert client.get(address + 'report?run=fit').status_code == 202\n"
        "assert not {'torch', 'lightning', 'pytorch_lightning', 'fsspec', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run((sys.executable, "-W", "ignore", "-c", code), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_tab_is_active_when_there_is_something_to_show(logdir: Path) -> None:
    assert application(logdir).get("/data/plugins_listing").json["lightning_perf"]["enabled"] is False  # type: ignore[index]
    write_trace(logdir / "fit" / "a.pt.trace.json")
    assert application(logdir).get("/data/plugins_listing").json["lightning_perf"]["enabled"] is True  # type: ignore[index]


@pytest.mark.parametrize("part", ["routes.Routes", "discovery.roots_of"])
def test_tensorboard_goes_on_without_a_broken_plugin(logdir: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(f"lightning_perf.tensorboard.{part}", broken)
    client = application(logdir)
    assert client.get("/data/plugins_listing").status_code == 200
    assert client.get("/data/plugin/lightning_perf/data/runs").status_code == 404


def test_a_context_may_be_nearly_empty() -> None:
    plugin = PerfPlugin(base_plugin.TBContext())
    assert plugin.is_active() is False
    assert "/data/runs" in plugin.get_plugin_apps()
