"""The tab answers requests to names of this machine only, whatever their port."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from werkzeug.test import Client

from lightning_perf.tensorboard.jobs import Failed
from lightning_perf.tensorboard.responses import own_names
from tests.tensorboard.support import PREFIX, StubQueue, asker, write_trace
from tests.tensorboard.test_routes_safety import ROUTES


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
