"""Build variants of a trained model and measure their accuracy, latency and size.

The public names load on first use, so that the command line can show its options without loading torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.lazy_imports import lazy_names

if TYPE_CHECKING:
    from lightning_perf.commands.infer import add_measuring, exit_code, require_packages, write_outputs
    from lightning_perf.inference.backbones import sweep_backbones
    from lightning_perf.inference.counting.count import count_model, find_peaks
    from lightning_perf.inference.counting.document import bound_latency
    from lightning_perf.inference.errors import InferenceError, VariantError
    from lightning_perf.inference.measurement.measure import Effort
    from lightning_perf.inference.model import Validation, usable_device
    from lightning_perf.inference.results.tradeoff import Sweep, Tradeoff
    from lightning_perf.inference.run import MeasureOptions, measure_variants, save_document
    from lightning_perf.inference.training import Distillation, FineTuner
    from lightning_perf.inference.variants.artefact import Artefact, load_artefact, read_artefact
    from lightning_perf.inference.variants.variant import default_variants, measure_storage, parse_variants

__all__ = [
    "Artefact",
    "Distillation",
    "Effort",
    "FineTuner",
    "InferenceError",
    "MeasureOptions",
    "Sweep",
    "Tradeoff",
    "Validation",
    "VariantError",
    "add_measuring",
    "bound_latency",
    "count_model",
    "default_variants",
    "exit_code",
    "find_peaks",
    "load_artefact",
    "measure_storage",
    "measure_variants",
    "parse_variants",
    "read_artefact",
    "require_packages",
    "save_document",
    "sweep_backbones",
    "usable_device",
    "write_outputs",
]

__getattr__, __dir__ = lazy_names(__name__)
