"""Divides the time of a worker process among the stages of loading, and finds these stages in the user's objects."""

from __future__ import annotations

import builtins
import functools
import io
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

READ, DECODE, OTHER = "read files", "decode", "dataset code"

MAX_DEPTH = 4
"""Data sets inside data sets, such as `Subset`, that are searched for transforms."""

DECODERS = (
    ("PIL.Image", "open"),
    ("torchvision.io", "read_image"),
    ("torchvision.io", "decode_image"),
    ("torchvision.io", "decode_jpeg"),
    ("torchvision.io", "decode_png"),
    ("cv2", "imread"),
    ("cv2", "imdecode"),
)
"""Functions that decode pictures, by module and name. Only modules that the program has loaded are changed."""


class StageClock:
    """Charges time to the innermost active stage. The times of all stages add up to the whole time."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._thread = threading.get_ident()
        self._stack: list[str] = []
        self._since_ns = 0
        self.times_ns: defaultdict[str, int] = defaultdict(int)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the time inside the block to a stage. A stage inside itself, or in another thread, changes nothing."""
        if threading.get_ident() != self._thread or (self._stack and self._stack[-1] == name):
            yield
            return
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that charges its time to a stage, as far as the loader runs it."""

        @functools.wraps(function, updated=())
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self._stack:
                return function(*args, **kwargs)
            with self.stage(name):
                return function(*args, **kwargs)

        return wrapped

    def take(self) -> dict[str, int]:
        """Return the times since the last call, and start again at zero."""
        taken = dict(self.times_ns)
        self.times_ns.clear()
        return taken

    def _charge(self) -> None:
        now_ns = self._now_ns()
        if self._stack:
            self.times_ns[self._stack[-1]] += now_ns - self._since_ns
        self._since_ns = now_ns


class _TimedFile:
    """A file that charges its reads to a stage, and is otherwise the file itself."""

    def __init__(self, file: Any, clock: StageClock) -> None:
        self._file, self._clock = file, clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._file, name)
        return self._clock.timed(READ, value) if name.startswith("read") and callable(value) else value

    def __enter__(self) -> _TimedFile:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        lines = iter(self._file)
        read = self._clock.timed(READ, lambda: next(lines, None))
        return iter(read, None)


class _TimedTransform:
    """A transform that charges its time to a stage of its own, and is otherwise the transform itself."""

    def __init__(self, transform: Any, name: str, clock: StageClock) -> None:
        self._transform = transform
        self._call = clock.timed(name, transform)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("_transform", "_call"):
            raise AttributeError(name)
        return getattr(self._transform, name)


def instrument(dataset: Any, clock: StageClock) -> None:
    """Time the stages of a data set. Call it in a worker process: it changes the process and the data set in place."""
    _time_reads(clock)
    _time_decoders(clock)
    _time_transforms(dataset, clock, MAX_DEPTH)


def _time_reads(clock: StageClock) -> None:
    own_open = builtins.open

    def timed_open(*args: Any, **kwargs: Any) -> Any:
        if not clock._stack or threading.get_ident() != clock._thread:
            return own_open(*args, **kwargs)
        with clock.stage(READ):
            return _TimedFile(own_open(*args, **kwargs), clock)

    builtins.open = timed_open
    io.open = timed_open


def _time_decoders(clock: StageClock) -> None:
    for module_name, name in DECODERS:
        module = sys.modules.get(module_name)
        function = getattr(module, name, None)
        if callable(function):
            setattr(module, name, clock.timed(DECODE, function))
    # PIL decodes when the pixels are needed first, and `convert` and the other methods call `load`.
    files = sys.modules.get("PIL.ImageFile")
    if files is not None:
        files.ImageFile.load = clock.timed(DECODE, files.ImageFile.load)


def _time_transforms(owner: Any, clock: StageClock, depth: int) -> None:
    parts = vars(owner) if hasattr(owner, "__dict__") else {}
    for name, value in list(parts.items()):
        chain = getattr(value, "transforms", None)
        if isinstance(chain, list) and callable(value):  # Compose of torchvision, albumentations and others
            names = _distinct([_name_of(each) for each in chain])
            value.transforms = [
                _TimedTransform(each, f"transform {label}", clock) for each, label in zip(chain, names, strict=True)
            ]
        elif name in ("transform", "target_transform") and callable(value):
            setattr(owner, name, _TimedTransform(value, f"transform {_name_of(value)}", clock))
        elif depth and hasattr(value, "__dict__") and (hasattr(value, "__getitem__") or hasattr(value, "__iter__")):
            _time_transforms(value, clock, depth - 1)
        elif name == "datasets" and depth and isinstance(value, (list, tuple)):
            for each in value:
                _time_transforms(each, clock, depth - 1)


def _name_of(transform: Any) -> str:
    return str(getattr(transform, "__name__", None) or type(transform).__name__)


def _distinct(names: list[str]) -> list[str]:
    """Number the names that occur more than once."""
    seen: defaultdict[str, int] = defaultdict(int)
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(name if names.count(name) == 1 else f"{name} {seen[name]}")
    return labels
