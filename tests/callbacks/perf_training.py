"""Tiny fits under a `PerfCallback` of a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_perf import PerfCallback
from tests.callbacks.training import (
    PACKAGES,
    events,
    loader,
    make_module,
    make_trainer,
)


def fit(
    tmp_path: Path,
    batches: Any = 8,
    *,
    name: str = PACKAGES[0],
    module: Any = None,
    val: Any = None,
    callback: PerfCallback | None = None,
    **options: Any,
) -> Any:
    """Fit a tiny module; by default two steps are recorded from the second on."""
    callback = callback or quick()
    trainer = make_trainer(tmp_path, callback, name, **options)
    data = loader(batches) if isinstance(batches, int) else batches
    trainer.fit(module or make_module(name), data, loader(val) if isinstance(val, int) else val)
    assert_untapped(trainer)
    return trainer


def assert_untapped(trainer: Any) -> None:
    assert not {"start", "stop"} & vars(trainer.profiler).keys(), "the tap is still there"


def quick(**options: Any) -> PerfCallback:
    return PerfCallback(**{"skip_first": 1, "warmup": 0, "active": 2, "report": "none", **options})


def three(**options: Any) -> PerfCallback:
    """Like `quick`, for three recorded steps."""
    return quick(**{"active": 3, **options})


def assert_nested(file: Path) -> None:
    ranges = [e for e in events(file) if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    assert any(e["name"].startswith("Optimizer.step#") for e in ranges)
    open_until: dict[Any, list[tuple[float, str]]] = {}
    for event in sorted(ranges, key=lambda e: (e["ts"], -e["dur"])):
        outer = open_until.setdefault(event["tid"], [])
        end = event["ts"] + event["dur"]
        while outer and outer[-1][0] <= event["ts"]:
            outer.pop()
        assert not outer or end <= outer[-1][0] + 0.001, f"{event['name']} ends after {outer[-1][1]}"
        outer.append((end, event["name"]))
