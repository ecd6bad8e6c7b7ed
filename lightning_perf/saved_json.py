"""Decode JSON that may come from anywhere: whatever is wrong with it, the error is a `msgspec.DecodeError`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

_DIGITS = bytes(48) + b"0" * 10 + bytes(198)
_MOST = 2**64 - 1
_NUMBER = re.compile(rb"(?<![\d.])\d{20,}(?![\d.eE])")
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def decoder(kind: Any) -> Callable[[bytes | str], Any]:
    """Return a function that decodes JSON of one type.

    It raises `msgspec.ValidationError` for JSON of another type, that is nested too deeply, or has an integer of more
    than 64 bits, which numpy cannot hold. It raises any other `msgspec.DecodeError` for text that is not JSON.
    """
    decode = msgspec.json.Decoder(kind).decode

    def decode_any(data: bytes | str) -> Any:
        try:
            data = data.encode() if isinstance(data, str) else data
            if _has_long_number(data):
                raise msgspec.ValidationError("a number of more than 64 bits")
            return decode(data)
        except RecursionError:
            raise msgspec.ValidationError("nested too deeply") from None
        except UnicodeError as error:
            raise msgspec.DecodeError(f"not UTF-8: {error}") from error

    return decode_any


def decode_json(data: bytes | str, kind: Any = Any) -> Any:
    """Decode JSON once; see `decoder`.

    Example:
        >>> decode_json('{"step": 18446744073709551616}')
        Traceback (most recent call last):
            ...
        msgspec.ValidationError: a number of more than 64 bits
    """
    return decoder(kind)(data)


def _has_long_number(data: bytes) -> bool:
    if b"0" * 20 not in data.translate(_DIGITS):  # quick, and true of nearly every file
        return False
    numbers = _NUMBER.findall(_TEXT.sub(b'""', data))
    return any(len(number) > len(str(_MOST)) or int(number) > _MOST for number in numbers)
