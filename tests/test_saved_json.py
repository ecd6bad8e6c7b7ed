"""JSON that somebody else wrote: each fault is one kind of error."""

from typing import Any

import msgspec
import pytest

from lightning_perf.saved_json import decode_json

DEEP = b'{"a":' * 5_000 + b"1" + b"}" * 5_000


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (DEEP, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 18446744073709551616}', "a number of more than 64 bits"),
        (b"[-1" + b"0" * 5_000 + b"]", "a number of more than 64 bits"),
        (b"[1e400]", "out of range"),
    ],
)
def test_well_formed_json_that_nothing_can_use_is_invalid(data: bytes, problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        decode_json(data, Any)


@pytest.mark.parametrize("data", [b"", b"{", b'["\xff"]', b"1 2", b'["\\ud800"]', '"\ud800"'])
def test_anything_else_is_damaged(data: bytes | str) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        decode_json(data, Any)
    assert not isinstance(caught.value, msgspec.ValidationError)


@pytest.mark.parametrize(
    "value", [2**64 - 1, -(2**63), 1e300, f"run {10**30}", '"', f'a\\", {10**30}', [10**19, "x"], 123456789012345678.5]
)
def test_long_numbers_in_text_and_fractions_are_fine(value: object) -> None:
    assert decode_json(msgspec.json.encode({"a": [value]})) == {"a": [value]}
