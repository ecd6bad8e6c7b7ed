"""The user's Python functions, in recordings with stacks."""

from __future__ import annotations

import re
import sys

import numpy as np

from lightning_perf.analysis.core.averaged_steps import cached_per_trace
from lightning_perf.trace.columns import Int64Array
from lightning_perf.trace.trace import Trace

_FUNCTION = re.compile(r"^(?P<path>[^<>\n]+\.py)\((?P<line>\d+)\): (?P<name>.+)$")

COLLECTION = "Python GC"
"""A garbage collection among the functions, as torch names it from 2.15 on."""

_LIBRARIES = {
    "PIL", "functorch", "lightning", "lightning_fabric", "lightning_perf", "lightning_utilities", "numpy", "pandas",
    "pytorch_lightning", "rich", "torch", "torchmetrics", "torchvision", "tqdm",
}  # fmt: skip
"""Packages that a training is written with. The recorder shortens their paths to the part below ``site-packages``."""

_INSTALLED = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3\.\d+|[Pp]ython[^/]*/Lib)/")


def is_user_function(name: str) -> bool:
    """Return whether the recorder's name of a Python function is of the user's own code.

    Example:
        >>> is_user_function("train.py(20): training_step"), is_user_function("torch/nn/modules/module.py(9): forward")
        (True, False)
        >>> is_user_function("contextlib.py(104): __init__"), is_user_function("<built-in function sleep>")
        (False, False)
    """
    found = _FUNCTION.match(name)
    path = found["path"].replace("\\", "/") if found is not None else ""  # recorded on Windows
    if found is None or _INSTALLED.search(path) or found["name"] == "<module>":
        return False
    top = path.lstrip("./").split("/")[0].removesuffix(".py")
    return top not in _LIBRARIES and top not in sys.stdlib_module_names


def function_text(name: str) -> str:
    """Return the recorder's name of a Python function as text for a reader.

    Example:
        >>> function_text("Python GC")
        "Python's garbage collection"
        >>> function_text("src/train.py(20): training_step")
        'training_step (src/train.py:20)'
    """
    if name == COLLECTION:
        return "Python's garbage collection"
    found = _FUNCTION.match(name)
    return name if found is None else f"{found['name']} ({found['path']}:{found['line']})"


@cached_per_trace
def _user_rows(trace: Trace) -> Int64Array:
    """The rows of the user's functions, and of garbage collections, in `Trace.python`."""
    mine = trace.names_where(lambda name: name == COLLECTION or is_user_function(name))
    return np.flatnonzero(mine[trace.python.name]) if len(trace.python) else np.empty(0, dtype=np.int64)


def user_function(trace: Trace, thread: int, start_ns: int, end_ns: int) -> str | None:
    """Return the innermost user's function, or collection, that covers more than half of a stretch of time."""
    rows, table = _user_rows(trace), trace.python
    rows = rows[: int(np.searchsorted(table.start_ns[rows], end_ns, side="left"))]
    rows = rows[(table.end_ns[rows] > start_ns) & (table.thread[rows] == thread)]
    overlap = np.minimum(table.end_ns[rows], end_ns) - np.maximum(table.start_ns[rows], start_ns)
    covering = rows[2 * overlap > end_ns - start_ns]
    return trace.names[int(table.name[covering[-1]])] if len(covering) else None
