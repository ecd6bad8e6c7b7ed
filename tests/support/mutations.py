"""Seeded damage to the text of a real trace."""

import random
from collections.abc import Callable

__all__ = ["MUTATIONS", "mutated"]

_WORDS = (
    b"nan", b"-inf", b"null", b"true", b'"', b"\\", b"\x00", b"\x1f", b"\xff", b"[", b"]", b"{", b"}", b",", b":",
    b"9" * 40, b"1e999", b"-1", b"0x10", b'"ph"', b'"traceEvents"', b'"ts": "N/A"', b"},\n  {", b'"\\ud800"',
    b"[" * 600,
)  # fmt: skip


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 4, 32))):
        data[rng.randrange(len(data))] = rng.randrange(256)


def _delete(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 3, 20, 400, 5000))]


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.choice(_WORDS)


def _repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.choice((10, 300, 4000))]


def _swap(data: bytearray, rng: random.Random) -> None:
    a, b = sorted(rng.randrange(len(data)) for _ in range(2))
    data[a : a + 200], data[b : b + 200] = data[b : b + 200], data[a : a + 200]


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _number(data: bytearray, rng: random.Random) -> None:
    """Replace a field's number by something else: the damage that stays valid JSON."""
    key = rng.choice((b'"ts": ', b'"dur": ', b'"tid": ', b'"pid": ', b'"correlation": ', b'"stream": ', b'"device": '))
    at = data.find(key, rng.randrange(len(data)))
    if at < 0:
        return
    begin = at + len(key)
    end = begin
    while end < len(data) and data[end] not in b",}\n":
        end += 1
    data[begin:end] = rng.choice(
        (b"-5", b"0", b"1e5", b"1e308", b'"7"', b"null", b"nan", b"[]", b"{}", b"true", b"9" * 25, b"-" + b"9" * 18)
    )


def _nest(data: bytearray, rng: random.Random) -> None:
    """Add an argument that is nested deeply, or long beyond measure."""
    at = data.find(b'"args": {', rng.randrange(len(data)))
    if at < 0:
        return
    depth = rng.choice((10, 500, 990, 1500, 20_000, 200_000))
    at += len(b'"args": {')
    data[at:at] = rng.choice(
        (
            b'"x": ' + b"[" * depth + b"]" * depth + b",",
            b'"x": ' + b'{"a": ' * depth + b"1" + b"}" * depth + b",",
            b'"Input Dims": ' + b"[" * depth,
            b'"Input Dims": [' + b"[123456789, 987654321, 123456789]," * 3 + b"[]],",
            b'"Input type": ' + b"[" * depth + b"]" * depth + b",",
            b'"flops": ' + b"9" * depth + b",",
            b'"flops": 1e' + b"9" * depth + b",",
            b'"grid": [' + b"1," * depth + b"1],",
        )
    )


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _delete, _insert, _repeat, _swap, _truncate, _number, _number, _nest,
)  # fmt: skip


def mutated(text: bytes, seed: int) -> bytes:
    """The text with one to four random damages; the same for the same seed."""
    rng = random.Random(seed)
    data = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if data:
            rng.choice(MUTATIONS)(data, rng)
    return bytes(data)
