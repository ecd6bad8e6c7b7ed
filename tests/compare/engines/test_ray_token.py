"""A Ray cluster that requires a token gives one clear error, at once, and works with the token."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from lightning_perf.compare.engines.ray import connect
from lightning_perf.errors import CompareError

TOKEN = "a-token-of-more-than-32-characters-for-ray"


class AuthenticationError(Exception):
    pass


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """A Ray that requires a token, and an address at which something answers."""
    asked = []

    def init(**options):
        asked.append("init")
        if os.environ.get("RAY_AUTH_TOKEN") != TOKEN:
            raise AuthenticationError("20 lines")

    def probe(command, **options):
        asked.append("probe")
        rejected = os.environ.get("RAY_AUTH_TOKEN") != TOKEN or os.environ.get("RAY_AUTH_MODE") != "token"
        return SimpleNamespace(returncode=int(command[-1]) if rejected else 0)

    errors = SimpleNamespace(AuthenticationError=AuthenticationError)
    ray = SimpleNamespace(init=init, is_initialized=lambda: False, exceptions=errors)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("lightning_perf.compare.engines.ray.subprocess.run", probe)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")  # so that what `connect` sets is undone
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield SimpleNamespace(address=f"127.0.0.1:{server.getsockname()[1]}", asked=asked)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "RAY_AUTH_TOKEN is not set"),
        ({"RAY_AUTH_MODE": "token"}, "the one in ~/.ray/auth_token is wrong"),
        ({"RAY_AUTH_TOKEN": "wrong"}, "the one in RAY_AUTH_TOKEN is wrong"),
        ({"RAY_AUTH_TOKEN": TOKEN, "RAY_AUTH_MODE": "disabled"}, 'RAY_AUTH_MODE is "disabled"'),
    ],
)
def test_a_missing_or_wrong_token_is_one_error_with_the_fix(stand_in, monkeypatch, tmp_path, environment, reason):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("old")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CompareError) as error:
        connect(stand_in.address)
    assert str(error.value).startswith(f"The Ray cluster at {stand_in.address} requires its authentication token, but ")
    assert reason in str(error.value)
    assert str(error.value).endswith("export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=TOKEN")
    assert stand_in.asked == ["probe"]  # not Ray itself, which tries for 20 seconds


def test_a_token_turns_the_token_mode_on(stand_in, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    connect(stand_in.address)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert stand_in.asked == ["probe", "init"]


def test_without_an_address_that_can_be_asked_rays_own_error_is_explained(stand_in, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(CompareError, match="The Ray cluster at auto requires its authentication token"):
        connect()
    assert stand_in.asked == ["init"]


@pytest.mark.slow
def test_a_real_cluster_with_a_token(tmp_path):
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {"HOME": str(tmp_path)}
    with_token = clean | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    head = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}", "--num-cpus=1"]
    head += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"]
    ask = f"from lightning_perf.compare.engines.ray import connect; connect('127.0.0.1:{port}').nodes()"
    with (tmp_path / "log").open("wb") as log:
        cluster = subprocess.Popen(head, env=with_token, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 90
        while not _answers(port):
            assert cluster.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.5)
        refused = subprocess.run([sys.executable, "-c", ask], env=clean, capture_output=True, text=True, check=False)
        assert refused.stderr.count("InvalidAuthToken") == 0
        assert "CompareError: The Ray cluster at 127.0.0.1" in refused.stderr
        given = clean | {"RAY_AUTH_TOKEN": TOKEN}
        accepted = subprocess.run([sys.executable, "-c", ask], env=given, capture_output=True, text=True, check=False)
        assert accepted.returncode == 0, accepted.stderr
    finally:
        cluster.send_signal(signal.SIGTERM)
        try:
            cluster.wait(30)
        except subprocess.TimeoutExpired:
            cluster.kill()
            cluster.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
