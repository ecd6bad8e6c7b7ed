"""Reads events from text that does not decode, one by one. It repairs them if possible, and counts the others.

Real recordings hold unescaped quotes, backslashes and control characters in names, bare ``nan``, and fields of
unexpected types (pytorch/kineto#336, #750; pytorch#98432).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from lightning_perf.trace.text.events import (
    FAULTS,
    NO_RAW,
    Args,
    Complete,
    Counter,
    Instant,
    InstantArgs,
    Named,
    decode,
    decode_exact,
    decode_raw,
)

_FAULTS = (*FAULTS, ArithmeticError)  # an overflow, too
_QUOTES_MENDED_BELOW_BYTES = 1 << 16
_LONGEST_NUMBER_BYTES = 300
_TOGETHER = 32

_CONTROL = bytes(range(0x20))
_TO_BLANK = bytes.maketrans(_CONTROL, b" " * len(_CONTROL))
_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_SURROGATE = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_STRING_OR_BARE = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")|([^\s{}\[\]:,"]+)', re.DOTALL)
_VALID_BARE = re.compile(rb"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
_TRAILING_COMMA = re.compile(rb",(?=\s*[}\]])")
_STRING_VALUE = re.compile(rb'(?<=[{,])(\s*"[^"\\]+"\s*:\s*")(.*?)"(?=\s*(?:,\s*"[^"\\]+"\s*:|\}))', re.DOTALL)
_INNER_QUOTE = re.compile(rb'(?<!\\)"')

_any_decoder = msgspec.json.Decoder(float_hook=Decimal)
_encode = msgspec.json.Encoder(decimal_format="number").encode

_RAW_FIELDS = frozenset(f.name for f in msgspec.structs.fields(Args) if f.type is msgspec.Raw)
_ARGS_FIELDS = {f.encode_name: f.name for f in msgspec.structs.fields(Args)}
_INSTANT_FIELDS = {f.encode_name: f.name for f in msgspec.structs.fields(InstantArgs)}


class Salvage:
    """Reads the readable events of damaged pieces.

    Attributes:
        repaired: Events read after a repair of invalid JSON.
        dropped: Events that could not be read even then.
    """

    def __init__(self) -> None:
        self.repaired = 0
        self.dropped = 0

    def decode(
        self, piece: bytes, whole_events: Callable[[bytes], bytes], event_start: bytes, *, exact: bool
    ) -> list[Any]:
        """Return the events of a piece, sound or not. `whole_events` returns those of a piece that does not decode."""
        decoded = decode_exact if exact else decode
        try:
            return decoded(b"[" + piece + b"]")
        except FAULTS:
            pass  # sound pieces cost nothing more
        whole = whole_events(piece)
        if whole != piece:
            try:
                return decoded(b"[" + whole + b"]")
            except FAULTS:
                pass
        return self.events(whole, event_start)

    def events(self, piece: bytes, event_start: bytes) -> list[Any]:
        """Return the events of a piece."""
        try:
            texts = [bytes(raw) for raw in decode_raw(b"[" + piece + b"]")]
        except _FAULTS:
            texts = list(_split(piece, event_start))
        found: list[Any] = []
        for begin in range(0, len(texts), _TOGETHER):
            group = texts[begin : begin + _TOGETHER]
            try:
                found += decode_exact(b"[" + b",".join(group) + b"]")
            except _FAULTS:
                events = [self._event(text) for text in group]
                found += [event for event in events if event is not None]
                self.dropped += events.count(None)
        return found

    def _event(self, text: bytes) -> Any:
        try:
            return decode_exact(b"[" + text + b"]")[0]
        except _FAULTS:
            pass
        try:
            return _coerced(_any_decoder.decode(text))
        except _FAULTS:
            pass
        for value in _mended_values(text):
            if isinstance(value, dict):
                self.repaired += 1
                return _coerced(value)
        return None


def lenient_json(text: bytes) -> Any:
    """Decode a JSON value, repaired if necessary; None if that fails."""
    try:
        return msgspec.json.decode(text)
    except _FAULTS:
        return next(_mended_values(text), None)


def _mended_values(text: bytes) -> Iterator[Any]:
    mended = _mended(text)
    yield from _value(mended)
    if len(text) < _QUOTES_MENDED_BELOW_BYTES:
        yield from _value(_mended(_quotes_escaped(text)))


def _value(text: bytes) -> Iterator[Any]:
    try:
        yield _any_decoder.decode(text)
    except _FAULTS:
        return


def _split(piece: bytes, event_start: bytes) -> Iterator[bytes]:
    """Yield the texts between one start of an event and the next."""
    begins = [found.start() for found in re.finditer(rb"\{\s*" + re.escape(event_start) + rb"\s*:", piece)]
    if not begins:
        yield piece
        return
    if piece[: begins[0]].strip(b" \t\r\n,"):
        yield piece[: begins[0]]
    for begin, end in zip(begins, [*begins[1:], len(piece)], strict=True):
        yield piece[begin:end].rstrip(b" \t\r\n,")


def _mended(text: bytes) -> bytes:
    text = text.decode("utf-8", "replace").encode().translate(_TO_BLANK)
    text = _ESCAPE.sub(lambda m: m.group() if m.group(1) else rb"\\", text)
    text = _SURROGATE.sub(lambda m: m.group(1) or rb"\ufffd", text)
    text = _STRING_OR_BARE.sub(_mended_bare, text)
    return _TRAILING_COMMA.sub(b"", text)


def _mended_bare(found: re.Match[bytes]) -> bytes:
    """Turn ``nan``, ``-inf``, ``N/A`` and the like outside of strings into null."""
    if found.group(1) is not None:
        return found.group()
    bare = found.group(2)
    return bare if len(bare) < _LONGEST_NUMBER_BYTES and _VALID_BARE.fullmatch(bare) else b"null"


def _quotes_escaped(text: bytes) -> bytes:
    """Escape quotes inside a string value, which ends at a quote before a further key or the end of the object."""
    return _STRING_VALUE.sub(lambda m: m.group(1) + _INNER_QUOTE.sub(rb"\"", m.group(2)) + b'"', text)


def _coerced(value: Any) -> Any:
    """Convert an event with fields of unexpected types."""
    if not isinstance(value, dict):
        raise ValueError("not an event")
    recorded = value.get("args")
    args = recorded if isinstance(recorded, dict) else {}
    name, pid, tid = _text(value.get("name")), _label(value.get("pid"), 0), _label(value.get("tid"), 0)
    match value.get("ph"):
        case "X":
            return Complete(
                cat=_text(value.get("cat")),
                name=name,
                pid=pid,
                tid=tid,
                ts=_number(value.get("ts")),
                dur=_number(value.get("dur")),
                args=_coerced_args(args),
            )
        case "i":
            fields = {_INSTANT_FIELDS[k]: _label(v, -1) for k, v in args.items() if k in _INSTANT_FIELDS}
            return Instant(name=name, pid=pid, tid=tid, ts=_number(value.get("ts")), args=InstantArgs(**fields))
        case "C":
            return Counter(name=name, pid=pid, ts=_number(value.get("ts")), args=msgspec.Raw(_encode(args)))
        case _:
            return Named(name=name if value.get("ph") == "M" else "", pid=pid, tid=tid, args=args)


def _coerced_args(args: dict[str, Any]) -> Args:
    fields: dict[str, Any] = {}
    for key, value in args.items():
        field = _ARGS_FIELDS.get(key)
        if field in _RAW_FIELDS:
            fields[field] = NO_RAW if value is None else msgspec.Raw(_encode(value))
        elif field is not None and (label := _label(value, None)) is not None:
            fields[field] = label
    return Args(**fields)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _encode(value).decode()


def _label(value: Any, default: Any) -> Any:
    if isinstance(value, Decimal):
        value = float(value)
        return value if math.isfinite(value) else default
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else default


def _number(value: Any) -> Any:
    """Convert a time. A number in quotes counts too."""
    if isinstance(value, str):
        try:
            value = Decimal(value.strip())
        except InvalidOperation:
            return None
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
