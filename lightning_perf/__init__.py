"""See where the step time of a PyTorch Lightning training goes, what to change, and whether the change helped.

The public names load on first use. So the import takes little time, and you can analyze a trace without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_perf.callbacks.perf import PerfCallback
    from lightning_perf.callbacks.precision.switch import PrecisionError
    from lightning_perf.callbacks.precision_callback import PrecisionCallback
    from lightning_perf.callbacks.recording.recording_plan import CaptureOptions
    from lightning_perf.compare.folders import compare_runs
    from lightning_perf.compare.verdicts.comparison import Comparison
    from lightning_perf.errors import ExitCode, ReportError, TraceError
    from lightning_perf.findings.finding import Finding
    from lightning_perf.inference.backbones import sweep_backbones
    from lightning_perf.inference.results.tradeoff import Sweep, Tradeoff
    from lightning_perf.inference.run import measure_variants
    from lightning_perf.loop.perf_loop import PerfLoop
    from lightning_perf.loop.transformers_callback import PerfTrainerCallback
    from lightning_perf.page.html import PageError
    from lightning_perf.report.build import analyze
    from lightning_perf.report.compared import Compared
    from lightning_perf.report.document import PerfReport
    from lightning_perf.trace.reader import read_trace
    from lightning_perf.trace.trace import Trace
    from lightning_perf.tune.errors import TuneError
    from lightning_perf.tune.result import TuneResult
    from lightning_perf.tune.tuner import PerfTuner

__version__ = "0.1.0"

_HOMES = {
    "CaptureOptions": "lightning_perf.callbacks.recording.recording_plan",
    "Compared": "lightning_perf.report.compared",
    "Comparison": "lightning_perf.compare.verdicts.comparison",
    "ExitCode": "lightning_perf.errors",
    "Finding": "lightning_perf.findings.finding",
    "PageError": "lightning_perf.page.html",
    "PerfCallback": "lightning_perf.callbacks.perf",
    "PerfLoop": "lightning_perf.loop.perf_loop",
    "PerfReport": "lightning_perf.report.document",
    "PerfTrainerCallback": "lightning_perf.loop.transformers_callback",
    "PerfTuner": "lightning_perf.tune.tuner",
    "PrecisionCallback": "lightning_perf.callbacks.precision_callback",
    "PrecisionError": "lightning_perf.callbacks.precision.switch",
    "ReportError": "lightning_perf.errors",
    "Sweep": "lightning_perf.inference.results.tradeoff",
    "Trace": "lightning_perf.trace.trace",
    "TraceError": "lightning_perf.errors",
    "Tradeoff": "lightning_perf.inference.results.tradeoff",
    "TuneError": "lightning_perf.tune.errors",
    "TuneResult": "lightning_perf.tune.result",
    "analyze": "lightning_perf.report.build",
    "compare_runs": "lightning_perf.compare.folders",
    "measure_variants": "lightning_perf.inference.run",
    "read_trace": "lightning_perf.trace.reader",
    "sweep_backbones": "lightning_perf.inference.backbones",
}

_TORCH = {"torch", "lightning", "pytorch_lightning"}
"""Packages that the extras ``train`` and ``infer`` install."""

__all__ = [
    "CaptureOptions",
    "Compared",
    "Comparison",
    "ExitCode",
    "Finding",
    "PageError",
    "PerfCallback",
    "PerfLoop",
    "PerfReport",
    "PerfTrainerCallback",
    "PerfTuner",
    "PrecisionCallback",
    "PrecisionError",
    "ReportError",
    "Sweep",
    "Trace",
    "TraceError",
    "Tradeoff",
    "TuneError",
    "TuneResult",
    "__version__",
    "analyze",
    "compare_runs",
    "measure_variants",
    "read_trace",
    "sweep_backbones",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _TORCH:
            raise
        from lightning_perf.lazy_imports import install_command

        extra = "infer" if _HOMES[name].startswith("lightning_perf.inference") else "train"
        hint = f"{name} needs {error.name}. Install it with: {install_command(extra)}"
        raise ModuleNotFoundError(hint, name=error.name) from error


def __dir__() -> list[str]:
    return __all__
