"""The tab answers requests to names of this machine only, whatever their port."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.tensorboard.jobs import Failed
from tests.tensorboard.support import PREFIX, StubQueue, asker, write_trace

ROUTES = ["index.html", "static/app/main.js", "data/runs", "data/report", "data/table", "data/diff", "trace"]


def status(logdir: Path, route: str, host: str, **headers: str) -> int:
    client = asker(logdir, StubQueue(Failed("x"))).client
    response = client.get(f"{PREFIX}/{route}?run=fit&other=fit", headers={"Host": host, **headers})
    response.close()
    return response.status_code


@pytest.mark.parametrize("route", [*ROUTES, "data/study", "data/tradeoff", "perfetto/index.html"])
@pytest.mark.parametrize("host", ["evil.example:6006", "localhost.evil.example", "127.0.0.1.evil.example:6006"])
def test_a_website_that_points_its_name_here_reads_nothing(logdir: Path, route: str, host: str) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    assert status(logdir, route, host) == 403


@pytest.mark.parametrize(
    "host", ["localhost:6006", "localhost:9999", "127.0.0.1:1", "[::1]:6006", "10.0.0.5:6006", "gpu7:6006", "LocalHost"]
)
def test_names_of_this_machine_are_answered_at_any_port(logdir: Path, host: str) -> None:
    assert status(logdir, "data/runs", host) == 200


def test_the_machine_s_own_name_is_answered(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.tensorboard.responses._own_names", lambda: {"gpu7.cluster.example"})
    assert status(logdir, "data/runs", "GPU7.cluster.example:6006") == 200
    assert status(logdir, "data/runs", "gpu8.cluster.example:6006") == 403


def test_more_names_are_given_by_a_variable_that_the_refusal_names(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = asker(logdir).client
    refused = client.get(f"{PREFIX}/data/runs", headers={"Host": "board.example:80"})
    assert "LIGHTNING_PERF_HOSTS=board.example." in refused.json["message"]  # type: ignore[index]
    monkeypatch.setenv("LIGHTNING_PERF_HOSTS", "other.example, Board.example")
    assert status(logdir, "data/runs", "board.example:80") == 200


def test_a_notebook_service_with_https_may_forward_under_its_own_name(logdir: Path) -> None:
    assert status(logdir, "data/runs", "x-colab.example", **{"Sec-Fetch-Site": "same-origin"}) == 200


def test_the_entry_without_data_is_answered_to_all(logdir: Path) -> None:
    assert status(logdir, "index.js", "evil.example") == 200
