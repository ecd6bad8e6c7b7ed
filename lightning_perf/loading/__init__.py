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
    from lightning_perf.errors import UserError, reason_of
    from lightning_perf.lazy_imports import find_object, import_extra

    import_extra("torch", "train")
    from lightning_perf.loading.measure import measure_loading, training_loader
    from lightning_perf.loading.result import LoadingError

    made = find_object(source, "PKG:NAME")
    try:
        if isinstance(made, type) or (callable(made) and not hasattr(made, "train_dataloader")):
            made = made()
        loader = training_loader(made)
    except UserError:
        raise
    except Exception as error:
        raise LoadingError(
            f"PKG:NAME {source}",
            f"fails ({reason_of(error)})",
            "Call it in Python for the whole error. It gets no arguments",
        ) from error
    return measure_loading(loader, seconds=seconds, step_ms=step_ms, name=source)
