"""One callback base class for the Trainers of both packages, `lightning.pytorch` and `pytorch_lightning`.

The two packages install side by side and share no class: each Trainer accepts callbacks of its own package only, so a
callback for both inherits from both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = ["HostCallback", "Module", "Trainer"]

Trainer: TypeAlias = Any
"""A `Trainer` of either package; they have no common type."""

Module: TypeAlias = Any
"""A `LightningModule` of either package."""

if TYPE_CHECKING:
    from lightning.pytorch import Callback as HostCallback
else:
    _BASES = []
    try:
        from lightning.pytorch import Callback as _Callback

        _BASES.append(_Callback)
    except ImportError:
        pass
    try:
        from pytorch_lightning import Callback as _Callback

        _BASES.append(_Callback)
    except ImportError:
        pass
    if not _BASES:
        raise ImportError('PerfCallback needs Lightning. Install it with: pip install "lightning-perf[train]"')

    class HostCallback(*_BASES):
        """A callback that is one of `lightning.pytorch` and of `pytorch_lightning`, whichever are installed."""
