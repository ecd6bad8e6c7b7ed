"""What is known of a run's precision, together: the file ``precision.json`` beside its traces."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from lightning_perf.analysis.loss_scale import LossScaleHistory
from lightning_perf.analysis.numerics_drift import NumericsDrift
from lightning_perf.analysis.precision import PrecisionSetting
from lightning_perf.analysis.underflow import UnderflowTable
from lightning_perf.errors import TraceError

__all__ = ["RunPrecision", "encode_precision", "read_precision"]


@dataclass(frozen=True)
class RunPrecision:
    """The precision that a run trained in, and what it did to the numbers.

    Attributes:
        setting: The precision, and which FP32 it was.
        loss_scale: The loss scale's history; None without a loss scale.
        underflow: Gradient underflow by layer; None where no step was sampled.
        numerics: The comparison with FP32 replays; None where none was asked for.
    """

    setting: PrecisionSetting
    loss_scale: LossScaleHistory | None = None
    underflow: UnderflowTable | None = None
    numerics: NumericsDrift | None = None


def encode_precision(precision: RunPrecision) -> bytes:
    """Encode it as UTF-8 JSON."""
    return msgspec.json.encode(precision)


def read_precision(path: str | Path) -> RunPrecision:
    """Read a ``precision.json`` file.

    Args:
        path: The file.

    Raises:
        TraceError: It cannot be read, or is something else.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=RunPrecision)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise TraceError(path, problem, "Give the path of a precision.json file") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(path, f"is no description of a run's precision ({error})", "Remove it") from error
