"""Every answer stays below the limit, and its handles lead to every value of the document."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.mcp_server.server import LIMIT_BYTES, HandleError, cut, find_value, page_of


def handle(pointer: str, start: int) -> str:
    return f"{start}:{pointer}"


def page(document: Any, name: str) -> dict[str, Any]:
    start, _, pointer = name.partition(":")
    found = page_of(find_value(document, pointer), handle, pointer, int(start))
    assert len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()) <= LIMIT_BYTES
    return found


def read_all(document: Any, shown: Any) -> Any:
    """The value behind a cut one, collected through its handles."""
    if isinstance(shown, list):
        return [read_all(document, item) for item in shown]
    if not isinstance(shown, dict):
        return shown
    if set(shown) == {"more"} and isinstance(shown["more"], str):
        return read_pages(document, shown["more"])
    if set(shown) == {"items", "total", "more"}:
        rest = read_pages(document, shown["more"])
        found = [read_all(document, item) for item in shown["items"]] + rest
        assert len(found) == shown["total"]
        return found
    if set(shown) == {"text", "characters", "more"}:
        found = shown["text"] + read_pages(document, shown["more"])
        assert len(found) == shown["characters"]
        return found
    return {key: read_all(document, value) for key, value in shown.items()}


def read_pages(document: Any, name: str) -> Any:
    parts: list[Any] = []
    more: str | None = name
    while more is not None:
        found = page(document, more)
        value = found["value"]
        parts.append(value if isinstance(value, str) else read_all(document, value))
        more = found.get("more")
    if isinstance(parts[0], dict):
        return {key: value for part in parts for key, value in part.items()}
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    return "".join(parts) if isinstance(parts[0], str) else parts[0]


ROWS = [{"name": f"kernel_{i}<float, {i}>", "times": list(range(i % 50)), "note": "x" * (i % 700)} for i in range(400)]
DOCUMENT = {
    "runs": ROWS,
    "a/b~c": {"text": "é" * 50_000},
    "deep": [[[[[[[[[[1, [2]]]]]]]]]]],
    "figure": 1.5,
    "none": None,
}


@pytest.mark.parametrize("document", [DOCUMENT, ROWS, {"text": "long " * 9999}, [], {}, {"empty": []}, [None] * 20_000])
def test_a_document_is_cut_and_can_be_read_in_full(document: Any) -> None:
    shown = cut(document, handle)
    assert len(json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()) <= LIMIT_BYTES
    assert read_all(document, shown) == document


def test_a_small_document_stays_as_it_is() -> None:
    document = {"verdict": "fine", "rows": [1, 2, 3], "nested": {"a": [{"b": None}]}}
    assert cut(document, handle) == document


def test_a_mapping_with_thousands_of_names_has_pages() -> None:
    document = {f"operator {i}": i for i in range(3000)}
    first = page(document, "0:")
    assert first["total"] == 3000
    assert list(first["value"]) == [f"operator {i}" for i in range(len(first["value"]))]
    assert read_pages(document, "0:") == document


def test_names_of_megabytes_stay_bounded() -> None:
    document = {"x" * 1_000_000: "y" * 1_000_000, "z": [{"w" * 1_000_000: 1}] * 3}
    shown = cut(document, handle)
    assert len(json.dumps(shown)) <= LIMIT_BYTES
    first = page(document, "0:")
    assert page(document, first["value"]["x" * 300 + "…"]["more"])["value"].startswith("yyy")
    assert page(document, "0:/z/2/#0")["value"] == 1


@pytest.mark.parametrize("pointer", ["/absent", "/runs/400", "/runs/x", "/runs/0/name/0", "/figure/1"])
def test_an_unknown_part_is_an_error(pointer: str) -> None:
    with pytest.raises(HandleError, match="no such part of the answer"):
        find_value(DOCUMENT, pointer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=60) | st.dictionaries(st.text(max_size=8), inner, max_size=12),
    max_leaves=60,
)


@given(JSON, st.integers(60, 3000))
@settings(max_examples=40, deadline=None)
def test_any_value_fits_any_limit(document: Any, limit: int) -> None:
    shown = cut(document, handle, limit=limit)
    assert len(json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()) <= max(limit, 100)
