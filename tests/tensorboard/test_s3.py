"""The plugin on a log directory in S3, served by a local stand-in."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.report.build import analyze
from tests.tensorboard.support import InlineQueue, asker, write_trace

pytest.importorskip("s3fs", reason="needs s3fs: pip install s3fs")
moto_server = pytest.importorskip("moto.server", reason="needs moto: pip install 'moto[server]'")

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of the stand-in."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A file system on an empty bucket ``logs``."""
    import s3fs

    for name, value in (
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ACCESS_KEY_ID", "testing"),
        ("AWS_SECRET_ACCESS_KEY", "testing"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    file_system = s3fs.S3FileSystem()
    file_system.mkdir("logs")
    yield file_system
    file_system.rm("logs", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def test_runs_are_found_fetched_and_analysed(bucket: Any, tmp_path: Path, user_cache: Path) -> None:
    local = write_trace(tmp_path / "fit" / "rank0.1.pt.trace.json.gz")
    bucket.put(str(local), "logs/runs/fit/rank0.1.pt.trace.json.gz")
    tab = asker("s3://logs/runs")
    (run,) = tab.json("data/runs")["runs"]
    assert (run["name"], run["kind"]) == ("fit", "trace")
    assert run["updated_s"] > 1.7e9
    report = tab.json("data/report", run="fit")
    expected = json.loads(analyze(local.parent).to_json())
    source = "s3://logs/runs/fit/rank0.1.pt.trace.json.gz"
    assert report["sources"] == report["ranks"][0]["sources"] == [source]
    assert report["ranks"][0]["breakdown"] == expected["ranks"][0]["breakdown"]
    assert isinstance(tab.queue, InlineQueue)
    assert [answer.message for answer in tab.queue.said[:1]] == ["fetching file 1 of 1, 0 MB in total"]  # type: ignore[union-attr]
    with tab.get("trace", run="fit", file=0) as stream:
        assert stream.data == local.read_bytes()
    assert not list(bucket.glob("logs/**/.lightning_perf*"))
    assert len(list(user_cache.rglob("*.page"))) == 1


def test_a_new_window_and_a_new_version_are_seen(bucket: Any, tmp_path: Path) -> None:
    first = write_trace(tmp_path / "rank0.1.pt.trace.json")
    bucket.put(str(first), "logs/fit/rank0.1.pt.trace.json")
    tab = asker("s3://logs")
    before = tab.json("data/report", run="fit")
    second = write_trace(tmp_path / "rank1.1.pt.trace.json", kernel_us=60)
    bucket.put(str(second), "logs/fit/rank1.1.pt.trace.json")
    after = tab.json("data/report", run="fit")
    assert (len(before["ranks"]), len(after["ranks"])) == (1, 2)
    bucket.put(str(write_trace(tmp_path / "new.json", kernel_us=70)), "logs/fit/rank0.1.pt.trace.json")
    (kernel,) = tab.json("data/report", run="fit")["parts"]["kernels.0"][-1]["rows"]
    assert kernel[4]["value"] == 70_000  # the mean


def test_a_bucket_that_cannot_be_read_is_a_note(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    type(bucket).clear_instance_cache()
    answer = asker("s3://logs/runs").json("data/runs")
    assert answer["runs"] == []
    assert "s3://logs/runs cannot be listed" in answer["notes"][0]
    type(bucket).clear_instance_cache()
