"""What no request can get, and what no name can do."""

import itertools
import socket
from pathlib import Path
from urllib.parse import quote

import pytest
from werkzeug.test import Client
from werkzeug.wrappers import Response

from lightning_perf.tensorboard.queue import Failed
from lightning_perf.tensorboard.routes import own_names
from tests.tensorboard.support import PREFIX, StubQueue, asker, write_trace

HOSTILE = '<img src=x onerror="alert(1)">'


DATA = ["data/report", "data/study", "data/tradeoff", "data/diff", "trace"]
ROUTES = [*DATA, "data/runs", "index.html", "index.js", "static/index.html", "perfetto/index.html"]


def test_run_names_are_never_paths(logdir: Path, tmp_path: Path) -> None:
    write_trace(tmp_path / "secret" / "a.pt.trace.json")
    write_trace(logdir / "fit" / "a.pt.trace.json")
    (logdir / "out").symlink_to(tmp_path / "secret")
    client = asker(logdir, fresh_s=3600.0).client
    names = ["..", "../secret", "/etc", "/etc/passwd", "fit/../../secret", "%2e%2e/secret", "fit/", "", "out", "fit\0"]
    for route, name in itertools.product(DATA, names):
        for quoted in (quote(name, safe=""), quote(quote(name, safe=""), safe="")):
            response = client.get(f"{PREFIX}/{route}?run={quoted}&other={quoted}&file=0")
            assert response.status_code in (400, 404)
            assert response.json["state"] == "failed"  # type: ignore[index]


def test_a_file_swapped_for_a_link_is_not_followed(logdir: Path, tmp_path: Path) -> None:
    trace = write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir, fresh_s=3600.0)
    assert tab.names() == ["fit"]
    trace.unlink()
    trace.symlink_to(write_trace(tmp_path / "secret" / "a.pt.trace.json"))
    assert tab.names() == ["fit"]  # the table of before is still fresh
    assert "leads out of" in tab.json("trace", 404, run="fit", file=0)["message"]
    assert "leads out of" in tab.json("data/report", 422, run="fit")["message"]


def test_files_are_served_from_fixed_tables(logdir: Path) -> None:
    tab = asker(logdir)
    for path in (
        "static/../plugin.py",
        "static/..%2f..%2fplugin.py",
        "static/%2e%2e/__init__.py",
        "static//etc/passwd",
        "static/views",
        "perfetto/../../../etc/passwd",
        "perfetto/LICENSE",
        "static/__init__.py",
    ):
        response = tab.client.get(f"{PREFIX}/{path}")
        assert (response.status_code, response.content_type) == (404, "application/json")


def test_answers_get_alone(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    client = asker(logdir, StubQueue(Failed("x"))).client
    for route, method in itertools.product(ROUTES, ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]):
        response = client.open(f"{PREFIX}/{route}?run=fit", method=method)
        assert (response.status_code, response.headers["Allow"]) == (405, "GET")


def test_every_answer_has_the_headers_that_keep_it_harmless(logdir: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    client = asker(logdir).client
    for route in [*ROUTES[:-1], "no/such", "static/nothing.js"]:
        with client.get(f"{PREFIX}/{route}?run=fit&other=fit") as response:
            _check_headers(response, route, caplog)


def _check_headers(response: Response, route: str, caplog: pytest.LogCaptureFixture) -> None:
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.content_type
    if route != "no/such":  # that one TensorBoard answers by itself
        policy = dict(part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
        assert policy["script-src"] == policy["connect-src"] == policy["default-src"] == "'self'"
        assert policy["object-src"] == "'none'"
        assert "frame-ancestors" not in policy  # notebooks show TensorBoard in a frame
    assert "Access-Control-Allow-Origin" not in response.headers
    assert not [record for record in caplog.records if "become an error" in record.message]


def test_hostile_names_are_data_and_nothing_else(logdir: Path) -> None:
    write_trace(logdir / f"{HOSTILE[:20]}" / f"{HOSTILE}.pt.trace.json".replace("/", ""))
    tab = asker(logdir)
    response = tab.get("data/runs")
    assert response.content_type == "application/json"
    (run,) = response.json["runs"]  # type: ignore[index]
    assert run["name"] == HOSTILE[:20]
    assert tab.json("data/report", run=run["name"])["sources"] == [f"{logdir}/{run['name']}/{run['traces'][0]}"]
    with tab.get("trace", run=run["name"], file=0) as stream:
        assert stream.content_type == "application/octet-stream"
        assert "\n" not in stream.headers["Content-Disposition"]


def status(client: Client, route: str, host: str, **headers: str) -> int:
    with client.get(f"{PREFIX}/{route}?run=fit&other=fit", headers={"Host": host, **headers}) as response:
        return response.status_code


def test_a_website_that_points_its_name_here_reads_nothing_but_the_entry(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    client = asker(logdir, StubQueue(Failed("x"))).client
    for host in ("evil.example:6006", "localhost.evil.example", "127.0.0.1.evil.example:6006"):
        assert {status(client, route, host) for route in ROUTES if route != "index.js"} == {403}
        assert status(client, "index.js", host) == 200


def test_names_of_this_machine_are_answered_at_any_port(logdir: Path) -> None:
    client = asker(logdir).client
    for host in ("localhost:6006", "localhost:9999", "127.0.0.1:1", "[::1]:6006", "10.0.0.5:6006", "gpu7", "LocalHost"):
        assert status(client, "data/runs", host) == 200
    # A notebook service with HTTPS may forward under its own name.
    assert status(client, "data/runs", "x-colab.example", **{"Sec-Fetch-Site": "same-origin"}) == 200


def test_the_machine_s_own_name_is_answered(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "gpu7.cluster.example")
    own_names.cache_clear()
    client = asker(logdir).client
    assert status(client, "data/runs", "GPU7.cluster.example:6006") == 200
    assert status(client, "data/runs", "gpu8.cluster.example:6006") == 403
    own_names.cache_clear()


def test_more_names_are_given_by_a_variable_that_the_refusal_names(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = asker(logdir).client
    refused = client.get(f"{PREFIX}/data/runs", headers={"Host": "board.example:80"})
    assert "LIGHTNING_PERF_HOSTS=board.example." in refused.json["message"]  # type: ignore[index]
    monkeypatch.setenv("LIGHTNING_PERF_HOSTS", "other.example, Board.example")
    assert status(client, "data/runs", "board.example:80") == 200
