"""Why a data loader is slow: a short run of the user's own data set in a worker process, timed by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_perf.loading.result import LoadingReport

SECONDS = 10.0
"""How long to load by default."""


def measure_source(source: str, *, seconds: float = SECONDS, step_ms: float | None = None) -> LoadingReport:
    """Import a data set and measure how long its batches take to load.

    Args:
        source: ``package.module:name`` of the data set, or of a function without arguments that returns it.
        step_ms: Time of a training step without waits for data.
    """
    from lightning_perf.lazy_imports import find_object, import_extra

    import_extra("torch", "train")
    from lightning_perf.loading.measure import measure_loading, training_loader
    from lightning_perf.loading.result import LoadingError

    made = find_object(source, "PKG:NAME")
    if callable(made) and not hasattr(made, "train_dataloader"):
        try:
            made = made()
        except Exception as error:
            raise LoadingError(
                f"PKG:NAME {source}", f"fails ({type(error).__name__}: {error})", "Give a function without arguments"
            ) from error
    return measure_loading(training_loader(made), seconds=seconds, step_ms=step_ms, name=source)
