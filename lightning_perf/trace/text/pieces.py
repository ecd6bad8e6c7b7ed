"""The text of a trace file cut into pieces of whole events, each decoded in one call while it is in the cache."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lightning_perf.errors import TraceError
from lightning_perf.trace.text.events import decode_raw

_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:')
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]', re.DOTALL)
_BLANK = b" \t\r\n"
_PADDING = _BLANK + b"\xef\xbb\xbf\0"
_LONGEST_KEY_BYTES = 64
_NOT_A_TRACE = "Pass a file that torch.profiler exported (export_chrome_trace or tensorboard_trace_handler)"
PIECE_BYTES = 1 << 18
"""Minimum length of a piece of the file."""

LARGEST_EVENT_BYTES = 32 << 20
"""A longer event counts as damage."""

_LARGEST_HEAD_BYTES = 256 << 20


class EventText:
    """Finds the events in a stream of text.

    Attributes:
        header: The text before the events, as the JSON text of an object.
        trailer: The text after the events, likewise; known after the last piece.
        truncated: Whether the text ended before the events did; known after the last piece.
        ended: Whether the piece read last was the last one.
        event_start: The first key of the events read last, with quotes. Events begin with it, after a comma.
        piece_begin: Where the piece read last begins in the stream.
    """

    def __init__(self, path: Path, chunks: Iterator[bytes]) -> None:
        self._path = path
        self._taken_bytes = 0
        self._chunks = self._counted(chunks)
        self.piece_begin = 0
        self.trailer = b"{}"
        self.truncated = False
        self._text = b""
        self._given_back = b""
        self.ended = False
        self.header = self._read_header()
        first = self._read_first_key()
        self.event_start = first or b'"ph"'

    def pieces(self) -> Iterator[bytes]:
        """Yield runs of whole events, each without the comma after it.

        Raises:
            TraceError: An event is larger than 32 MB.
        """
        parts, size, wanted = [self._text], len(self._text), PIECE_BYTES
        self._text = b""
        for chunk in self._chunks:
            parts.append(chunk)
            size += len(chunk)
            if size < wanted:
                continue
            text = b"".join(parts)
            cut = self._last_boundary(text)
            if cut is None:
                # An event larger than the piece: wait for twice as much, so that the work stays linear.
                self._refuse_oversize(size)
                parts, wanted = [text], 2 * size
                continue
            self.piece_begin = self._taken_bytes - size
            yield text[: cut[0]]
            rest, self._given_back = self._given_back, b""
            parts = [rest, text[cut[0] :]] if rest else [text[cut[1] :]]
            size = sum(map(len, parts))
            wanted = max(PIECE_BYTES, 2 * size)
        self._refuse_oversize(size)
        text = b"".join(parts)
        self.ended = True
        self.piece_begin = self._taken_bytes - size
        yield from self._last_piece(text)

    def whole_events(self, piece: bytes) -> bytes:
        """Return the whole events of a piece that does not decode. The incomplete tail carries over to the next piece.

        A cut is made where an event seems to begin. An object in a list inside an event's arguments can look the same.
        """
        if self.ended or not is_cut_short(piece):
            return piece
        end, begin = self._scanned_boundary(piece) or (0, 0)
        self._given_back = piece[begin:]
        return piece[:end]

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._taken_bytes += len(chunk)
            yield chunk

    def _refuse_oversize(self, size: int) -> None:
        if size > LARGEST_EVENT_BYTES:
            raise TraceError(
                self._path, f"holds something of {size / 1e6:,.0f} MB that is not a list of events", _NOT_A_TRACE
            )

    def _read_header(self) -> bytes:
        text = bytearray()
        for chunk in self._chunks:
            if not text:
                begin = chunk.lstrip(_PADDING)
                if begin.startswith(b"["):
                    self._text = begin[1:]
                    return b"{}"
                if begin and not begin.startswith(b"{"):
                    raise TraceError(self._path, f"is not JSON (it begins with {_shown(begin)})", _NOT_A_TRACE)
                chunk = begin
            searched = max(0, len(text) - _LONGEST_KEY_BYTES)
            text += chunk
            if found := _KEY.search(text, searched):
                self._text = bytes(text[found.end() :])
                return bytes(text[: found.start()]).strip(_BLANK + b",") + b"}"
            if len(text) > _LARGEST_HEAD_BYTES:
                break
        if not text:
            raise TraceError(self._path, "holds no text: it is blank, cut off or damaged", "Record the trace again")
        raise TraceError(self._path, 'looks like JSON, but holds no list of "traceEvents"', _NOT_A_TRACE)

    def _read_first_key(self) -> bytes | None:
        while len(self._text) < 4096:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._text += chunk
        found = _FIRST_KEY.match(self._text)
        return found.group(1) if found else None

    def _last_boundary(self, text: bytes) -> tuple[int, int] | None:
        """Find the last comma between two events, and the start of the event after it."""
        key = text.rfind(self.event_start)
        while key > 0:
            brace = _before(text, key)
            if text[brace : brace + 1] == b"{":
                comma = _before(text, brace)
                if text[comma : comma + 1] == b"," and text[_before(text, comma) : comma].startswith(b"}"):
                    return comma, brace
            key = text.rfind(self.event_start, 0, key)
        scanned = self._scanned_boundary(text)
        if scanned is not None and (found := _FIRST_KEY.match(text, scanned[1])):
            # Events of another kind may begin otherwise, and usually many follow: following brackets is slow.
            self.event_start = found.group(1)
        return scanned

    @staticmethod
    def _scanned_boundary(text: bytes) -> tuple[int, int] | None:
        """Do the same by following brackets and strings, for events that do not begin with the same key."""
        depth, last = 0, None
        for token in _TOKEN.finditer(text):
            mark = token.group()[:1]
            if mark in b"{[":
                depth += 1
            elif mark in b"}]":
                depth -= 1
                if depth < 0:
                    break
            elif mark == b"," and depth == 0:
                last = token.start()
        return None if last is None else (last, last + 1)

    def _last_piece(self, text: bytes) -> Iterator[bytes]:
        """Return the events before the closing bracket of the list. The text after it is the trailer."""
        closing, _ = _closing_bracket(text, 0)
        if closing is None:
            # A quote without an escape misleads the search, so begin at the last event.
            last = max(text.rfind(self.event_start), 0)
            closing, last_object_end = _closing_bracket(text, max(text.rfind(b"{", 0, last), 0))
            if closing is None:
                self.truncated = True
                yield text[:last_object_end]
                return
        yield text[:closing].rstrip(_BLANK + b",")
        self._finish(text[closing + 1 :])

    def _finish(self, rest: bytes) -> None:
        rest = rest.strip(_BLANK + b"\0")
        if self.header == b"{}" and not rest.startswith(b","):
            # A list at the top level needs nothing more. An object that opened with its events needs its brace.
            return
        if not rest.endswith(b"}"):
            self.truncated = True
            rest += b"}"
        self.trailer = b"{" + rest.lstrip(_BLANK + b",")


def _closing_bracket(text: bytes, begin: int) -> tuple[int | None, int]:
    """Find where the list's own bracket closes, if it does, and where the last whole object before that ends."""
    depth, object_end = 0, begin
    for token in _TOKEN.finditer(text, begin):
        mark = token.group()[:1]
        if mark in b"{[":
            depth += 1
        elif mark in b"}]":
            depth -= 1
            if depth == 0:
                object_end = token.end()
            elif depth < 0:
                return (token.start() if mark == b"]" else None), object_end
    return None, object_end


def is_cut_short(piece: bytes) -> bool:
    """Return whether a text is the start of valid events, with an incomplete last one."""
    try:
        decode_raw(b"[" + piece + b"]")
    except (msgspec.MsgspecError, RecursionError):
        pass
    else:
        return False
    try:
        decode_raw(b"[" + piece)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except RecursionError:
        return False
    return True


def _before(text: bytes, position: int) -> int:
    """Return the position of the last character before `position` that is not blank, or -1."""
    position -= 1
    while position >= 0 and text[position] in _BLANK:
        position -= 1
    return position


def _shown(text: bytes) -> str:
    return repr(text[:20].decode("utf-8", "backslashreplace"))
