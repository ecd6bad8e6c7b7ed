"""The page's figures read as those of the console."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_perf import units

ASSETS = Path(units.__file__).parent / "page" / "assets"

PAIRS: dict[str, Callable[[float | None], str]] = {
    "duration": units.format_duration,
    "bytes": units.format_bytes,
    "count": units.format_count,
    "share": units.format_share,
}

EDGES: list[float | None] = [
    0,
    1,
    -1,
    0.5,
    2.5,
    0.125,
    81_250_000,
    999.5,
    999_499,
    999_500,
    999_999,
    1023,
    1024,
    1048575,
    60.5e9,
    59.5e9,
]
EDGES += [3599.5e9, 3600e9, 0.00049, 0.9999, 0.00051, 1e-7, 12345.6, 1e18, 1000.5, 1001.5, None]


def values() -> list[float | None]:
    drawn = random.Random(7)
    some = [drawn.choice((-1, 1)) * 10 ** drawn.uniform(-6, 19) for _ in range(1500)]
    ties = [drawn.randrange(10**5) / 8 for _ in range(500)]
    return [*EDGES, *some, *map(float, map(int, some[:500])), *ties]


@pytest.mark.parametrize("name", PAIRS)
def test_figures_read_as_on_the_console(browser: Any, name: str) -> None:
    source = (ASSETS / "text" / "format.js").read_text()
    page = browser.new_page()
    page.evaluate(
        "source => import('data:text/javascript,' + encodeURIComponent(source)).then(m => { globalThis.f = m })", source
    )
    numbers = values()
    shown = page.evaluate("([name, numbers]) => numbers.map(globalThis.f[name])", [name, numbers])
    page.close()
    assert [(n, text) for n, text in zip(numbers, shown, strict=True) if text != PAIRS[name](n)] == []
