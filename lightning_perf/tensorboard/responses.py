"""HTTP responses, with the headers that keep untrusted text harmless."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from werkzeug.wrappers import Request, Response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["PAGE_POLICY", "RefusalError", "answer_data", "answer_json", "answer_stream", "get_only"]

PAGE_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # the charts place themselves by style attributes
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "frame-src 'self'",
        "frame-ancestors 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
"""Content security policy: no script but the page's own files, and nothing from another host."""

COMPRESSED_BYTES = 1000
CHUNK_BYTES = 1 << 18

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked again each time, answered with 304 where there is a tag
}


class RefusalError(Exception):
    """A request that is not answered with data.

    Args:
        status: HTTP status.
        message: Why, for the reader.
        state: ``"failed"``; the page shows the message.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def get_only(answer: Callable[[Request], Response]) -> WSGIApplication:
    """A WSGI application that answers GET alone, refusals as JSON."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        try:
            if request.method != "GET":
                raise RefusalError(405, "Only GET is answered here.")
            response = answer(request)
        except RefusalError as refusal:
            response = answer_json(request, {"state": "failed", "message": refusal.message}, refusal.status)
            if refusal.status == 405:
                response.headers["Allow"] = "GET"
        return response(environ, start_response)

    return application


def answer_json(request: Request, value: Any, status: int = 200) -> Response:
    """A JSON document from a value."""
    return answer_data(request, msgspec.json.encode(value), "application/json", status=status)


def answer_data(
    request: Request,
    data: bytes,
    content_type: str,
    *,
    status: int = 200,
    tag: str | None = None,
    policy: str = PAGE_POLICY,
    compress: bool = True,
) -> Response:
    """A response of bytes.

    Args:
        request: The request.
        data: The body.
        content_type: Its MIME type.
        status: HTTP status.
        tag: Changes whenever the data do: a browser that has them is told so instead of getting them again.
        policy: Content security policy.
        compress: Whether the body may shrink by compression.
    """
    if tag is not None and request.if_none_match.contains(tag):
        response = Response(status=304)
    elif compress and len(data) >= COMPRESSED_BYTES and request.accept_encodings.quality("gzip") > 0:
        response = Response(gzip.compress(data, 3, mtime=0), status, {"Content-Encoding": "gzip"})
    else:
        response = Response(data, status)
    response.headers.extend({**_HEADERS, "Content-Security-Policy": policy, "Vary": "Accept-Encoding"})
    response.content_type = content_type
    if tag is not None:
        response.set_etag(tag)
    return response


def answer_stream(stream: BinaryIO, size_bytes: int, name: str) -> Response:
    """A file as it is, in parts; closes it in the end."""
    response = Response(
        _parts(stream), headers={**_HEADERS, "Content-Security-Policy": PAGE_POLICY}, direct_passthrough=True
    )
    response.content_type = "application/octet-stream"
    response.content_length = size_bytes
    response.headers.set("Content-Disposition", "attachment", filename=name)
    response.call_on_close(stream.close)
    return response


def _parts(stream: BinaryIO) -> Iterator[bytes]:
    while part := stream.read(CHUNK_BYTES):
        yield part
