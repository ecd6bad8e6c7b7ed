import gzip
from io import BytesIO
from urllib.parse import unquote

import pytest
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

from lightning_perf.page.html import plotly_file
from lightning_perf.tensorboard.routes import (
    CHARTS,
    RefusalError,
    answer_data,
    answer_stream,
    get_only,
    page_assets,
    perfetto_assets,
)


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
        assert response.headers["Content-Disposition"] == "attachment; filename*=UTF-8''a.json"
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


def test_a_reader_that_leaves_early_closes_the_stream() -> None:
    stream = BytesIO(b"x" * 1_000_000)
    response = Client(get_only(lambda request: answer_stream(stream, "a.json"))).get("/", buffered=False)
    response.close()
    assert stream.closed


def test_the_page_s_files_have_types_that_browsers_run() -> None:
    assets = page_assets()
    assert assets["index.html"].content_type == "text/html; charset=utf-8"
    assert assets["app/main.js"].content_type == "text/javascript; charset=utf-8"
    assert all(asset.path.is_file() for asset in assets.values())


def test_without_the_extra_there_are_no_charts_and_no_timeline(nothing_installed: None) -> None:
    assert plotly_file() is None
    assert CHARTS not in page_assets()
    assert "index.html" in page_assets()
    assert perfetto_assets() == {}
