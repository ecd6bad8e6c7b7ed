"""The page as a server shows it: runs, progress, failures, new data, and Perfetto."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.documents import page_json
from tests.page.samples import hand_made_report
from tests.page.server import Server


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(page_json(hand_made_report(tmp_path)))
    return made


def test_the_newest_run_is_shown_once_the_server_has_analysed_it(server: Server, report: dict[str, Any]) -> None:
    server.runs(("old", 1.0), ("new", 2.0), notes=("A note of the server.",))
    server.answers["data/report new"] = [
        (202, {"state": "working", "done": 0.25, "message": "Reading the traces"}),
        (200, report),
    ]
    server.open()
    assert server.page.get_attribute("#run", "value") == "new"
    assert server.page.inner_text(".listing-notes") == "A note of the server."
    server.page.wait_for_selector("text=Reading the traces")
    assert server.page.get_attribute("progress", "value") == "0.25"
    server.page.clock.run_for(1_000)
    server.page.wait_for_selector("main .verdict")
    assert report["verdict"]["where"] in server.page.inner_text("main")


def told_as(report: dict[str, Any], where: str) -> dict[str, Any]:
    """The report with another verdict."""
    first, *others = report["parts"]["verdict"]
    return {**report, "parts": {**report["parts"], "verdict": [{**first, "text": where}, *others]}}


def test_another_run_by_menu_and_by_link(server: Server, report: dict[str, Any]) -> None:
    server.runs(("one", 2.0), ("two", 1.0))
    other = told_as(report, "The other run.")
    server.answers["data/report one"] = [(200, report)]
    server.answers["data/report two"] = [(200, other)]
    server.open()
    server.page.wait_for_selector("main .verdict")
    server.choose("two")
    server.page.wait_for_selector("text=The other run.")
    server.page.reload()
    server.page.wait_for_selector("text=The other run.")
    server.page.go_back()
    server.page.wait_for_selector(f"text={report['verdict']['where']}")


def test_a_failure_is_told_in_the_servers_words(server: Server) -> None:
    server.runs(("broken", 1.0))
    server.answers["data/report broken"] = [(422, {"state": "failed", "message": "The trace holds no events."})]
    server.open()
    server.page.wait_for_selector("text=The trace holds no events.")


def test_a_link_to_a_run_that_is_gone_says_so(server: Server) -> None:
    server.runs(("here", 1.0))
    server.open("#run=gone")
    server.page.wait_for_selector("text=The run gone does not exist")


def test_runs_and_windows_that_come_later_appear(server: Server, report: dict[str, Any]) -> None:
    server.runs()
    server.open()
    server.page.wait_for_selector("text=No runs yet")
    server.runs(("first", 1.0))
    server.answers["data/report first"] = [(200, report)]
    server.page.clock.run_for(2_000)
    server.page.wait_for_selector("main .verdict")
    server.page.click("nav a:text-is('Operators')")
    asked = len(server.asked)
    with server.page.expect_response("**/data/runs"):
        server.page.clock.run_for(30_000)
    server.answers["data/later"] = [(200, {})]
    server.page.evaluate("fetch('data/later').then((answer) => answer.json())")
    # Nothing is new, so nothing is fetched.
    assert [path for path, _ in server.asked[asked:]] == ["data/runs", "data/later"]
    server.runs(("first", 2.0))
    report["parts"]["verdict"][0]["text"] = "Now with a second window."
    server.page.clock.run_for(30_000)
    server.page.wait_for_selector("text=New data")
    assert server.page.inner_text("main h1") == "Operators"
    server.page.click("nav a:text-is('Overview')")
    server.page.wait_for_selector("text=Now with a second window.")


def test_the_run_on_display_stays_when_another_one_becomes_the_newest(server: Server, report: dict[str, Any]) -> None:
    server.runs(("one", 1.0))
    server.answers["data/report one"] = [(200, report)]
    server.open()
    server.page.wait_for_selector("main .verdict")
    server.runs(("one", 1.0), ("two", 2.0))
    with server.page.expect_response("**/data/runs"):
        server.page.clock.run_for(30_000)
    server.page.wait_for_selector("text=New run: two")
    assert server.page.get_attribute("#run", "value") == "one"
    assert "run=one" in server.page.url  # nor does who opens the link see another one


def test_a_view_that_cannot_be_drawn_says_so_and_the_others_work(server: Server, report: dict[str, Any]) -> None:
    report["parts"][f"kernels.{report['lead']}"][-1]["rows"] = [None]
    server.runs(("odd", 1.0))
    server.answers["data/report odd"] = [(200, report)]
    server.open("#view=kernels")
    server.page.wait_for_selector("text=This view cannot be drawn")
    assert len(server.faults) == 1
    assert "null" in server.faults.pop()
    server.page.click("nav a:text-is('Operators')")
    server.page.wait_for_selector("#table-operators tbody th")


def test_the_timeline_opens_perfetto_with_the_chosen_file(server: Server, report: dict[str, Any]) -> None:
    server.runs(("a run & more", 1.0))
    server.answers["data/report a run & more"] = [(200, report)]
    server.open("#view=timeline")
    server.page.wait_for_selector("text=Show it here")
    server.page.select_option("[aria-label='Trace file']", "1")
    server.page.click("text=Show it here")
    address = server.page.get_attribute("iframe", "src")
    assert address.startswith("perfetto/index.html#!/?url=http%3A%2F%2Fperf.test%2F")
    assert address.endswith("trace%3Frun%3Da%2Brun%2B%2526%2Bmore%26file%3D1&mode=embedded")
