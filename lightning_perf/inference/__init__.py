"""A trained model ─► variants ─► measurements ─► a table of accuracy against latency and size.

The public names load on first use: the command line asks for its options without loading torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.lazy_names import lazy_names

if TYPE_CHECKING:
    from lightning_perf.inference.artefact import Artefact, load_artefact, read_artefact
    from lightning_perf.inference.command import add_measuring, exit_code, require_packages, write_outputs
    from lightning_perf.inference.count import count_model
    from lightning_perf.inference.device import usable_device
    from lightning_perf.inference.distill import Distillation
    from lightning_perf.inference.errors import InferenceError, VariantError
    from lightning_perf.inference.fine_tune import FineTuner
    from lightning_perf.inference.measure import Effort
    from lightning_perf.inference.peaks import find_peaks
    from lightning_perf.inference.roofline import bound_latency
    from lightning_perf.inference.run import MeasureOptions, measure_variants, save_document
    from lightning_perf.inference.storage import measure_storage, pack_weights, unpack_weights
    from lightning_perf.inference.sweep import sweep_backbones
    from lightning_perf.inference.sweep_document import Sweep
    from lightning_perf.inference.tradeoff import Tradeoff
    from lightning_perf.inference.validation import Validation
    from lightning_perf.inference.variant import default_variants, parse_variants

_HOMES = {
    "Artefact": "artefact",
    "Distillation": "distill",
    "Effort": "measure",
    "FineTuner": "fine_tune",
    "InferenceError": "errors",
    "MeasureOptions": "run",
    "Sweep": "sweep_document",
    "Tradeoff": "tradeoff",
    "Validation": "validation",
    "VariantError": "errors",
    "add_measuring": "command",
    "bound_latency": "roofline",
    "count_model": "count",
    "default_variants": "variant",
    "exit_code": "command",
    "find_peaks": "peaks",
    "load_artefact": "artefact",
    "measure_storage": "storage",
    "measure_variants": "run",
    "pack_weights": "storage",
    "parse_variants": "variant",
    "read_artefact": "artefact",
    "require_packages": "command",
    "save_document": "run",
    "sweep_backbones": "sweep",
    "unpack_weights": "storage",
    "usable_device": "device",
    "write_outputs": "command",
}

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
    "pack_weights",
    "parse_variants",
    "read_artefact",
    "require_packages",
    "save_document",
    "sweep_backbones",
    "unpack_weights",
    "usable_device",
    "write_outputs",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
