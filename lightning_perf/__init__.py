"""Where the step time of a PyTorch Lightning training goes, what to change, and whether the change helped.

The public names load on first use, so that importing the package costs next to nothing and analysing a trace needs
no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_perf.callbacks.perf import PerfCallback
    from lightning_perf.callbacks.precision.errors import PrecisionError
    from lightning_perf.callbacks.precision_callback import PrecisionCallback
    from lightning_perf.callbacks.recording.slow_steps import CaptureOptions
    from lightning_perf.report.build import analyze
    from lightning_perf.report.document import PerfReport
    from lightning_perf.trace.columns import Trace
    from lightning_perf.trace.errors import TraceError
    from lightning_perf.trace.reader import read_trace
    from lightning_perf.tune.errors import TuneError
    from lightning_perf.tune.tuner import PerfTuner

__version__ = "0.1.0"

_HOMES = {
    "PerfCallback": "lightning_perf.callbacks.perf",
    "PrecisionCallback": "lightning_perf.callbacks.precision_callback",
    "PrecisionError": "lightning_perf.callbacks.precision.errors",
    "CaptureOptions": "lightning_perf.callbacks.recording.slow_steps",
    "PerfTuner": "lightning_perf.tune.tuner",
    "PerfReport": "lightning_perf.report.document",
    "Trace": "lightning_perf.trace.columns",
    "TuneError": "lightning_perf.tune.errors",
    "TraceError": "lightning_perf.trace.errors",
    "analyze": "lightning_perf.report.build",
    "read_trace": "lightning_perf.trace.reader",
}

_TRAIN = {"torch", "lightning", "pytorch_lightning"}
"""What the extra ``train`` installs."""

__all__ = [
    "CaptureOptions",
    "PerfCallback",
    "PerfReport",
    "PerfTuner",
    "PrecisionCallback",
    "PrecisionError",
    "Trace",
    "TraceError",
    "TuneError",
    "__version__",
    "analyze",
    "read_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _TRAIN:
            raise
        hint = f'{name} needs {error.name}. Run: pip install "lightning-perf[train]"'
        raise ModuleNotFoundError(hint, name=error.name) from error


def __dir__() -> list[str]:
    return __all__
