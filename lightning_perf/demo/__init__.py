"""The demo: two recorded runs that ship with the package, and the command that shows them."""

from __future__ import annotations

from pathlib import Path

RECORDINGS = Path(__file__).parent / "recordings"
"""The folder of the runs. ``benchmarks/training/demo.py`` recorded them."""

RUNS = ("before", "after")
"""A training with a slow dataset, and the same with a worker process that loads the data."""
