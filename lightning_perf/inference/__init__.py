"""A trained model ─► variants ─► measurements ─► a table of accuracy against latency and size.

The public names load on first use: the command line asks for its options without loading torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.lazy_names import lazy_names

if TYPE_CHECKING:
    from lightning_perf.inference.artefact import Artefact, load_artefact, read_artefact
    from lightning_perf.inference.count import count_model
    from lightning_perf.inference.distill import Distillation
    from lightning_perf.inference.errors import InferenceError, VariantError
    from lightning_perf.inference.fine_tune import FineTuner
    from lightning_perf.inference.measure import Effort
    from lightning_perf.inference.run import measure_variants
    from lightning_perf.inference.sweep import sweep_backbones
    from lightning_perf.inference.tradeoff import Tradeoff
    from lightning_perf.inference.validation import Validation

_HOMES = {
    "Artefact": "artefact",
    "Distillation": "distill",
    "Effort": "measure",
    "FineTuner": "fine_tune",
    "InferenceError": "errors",
    "Tradeoff": "tradeoff",
    "Validation": "validation",
    "VariantError": "errors",
    "count_model": "count",
    "load_artefact": "artefact",
    "measure_variants": "run",
    "read_artefact": "artefact",
    "sweep_backbones": "sweep",
}

__all__ = [
    "Artefact",
    "Distillation",
    "Effort",
    "FineTuner",
    "InferenceError",
    "Tradeoff",
    "Validation",
    "VariantError",
    "count_model",
    "load_artefact",
    "measure_variants",
    "read_artefact",
    "sweep_backbones",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
