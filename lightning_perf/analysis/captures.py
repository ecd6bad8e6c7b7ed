"""Captures: what made a run record steps outside of its schedule, one line each, in ``captures.rank0.jsonl``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec

from lightning_perf.analysis.json_lines import read_json_lines

__all__ = [
    "CaptureRecord",
    "CaptureTrigger",
    "Slowdown",
    "encode_capture",
    "is_capture_folder",
    "is_capture_name",
    "read_captures",
]

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

_FOLDER = re.compile(r"(?:slow-step|on-demand)-\d+")


class CaptureTrigger(Enum):
    """What asked for a capture."""

    SLOW_STEPS = "slow steps"
    SIGNAL = "signal"
    FILE = "file"


@dataclass(frozen=True)
class Slowdown:
    """Steps that stood out together.

    Attributes:
        usual_ns: Median of the steps before them.
        limit_ns: The step time above which a step counted as slow.
        step_ns: The times of the slow steps, one after the other.
    """

    usual_ns: _Count
    limit_ns: _Count
    step_ns: tuple[_Count, ...]


@dataclass(frozen=True)
class CaptureRecord:
    """Why a capture was made.

    Attributes:
        folder: Its folder, beside this file: ``slow-step-120``, ``on-demand-300``.
        trigger: What asked for it.
        step: The step after which it was asked for, the last of the slow ones.
        slowdown: How slow the steps were; None for one that was asked for.
    """

    folder: str
    trigger: CaptureTrigger
    step: _Count
    slowdown: Slowdown | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CaptureRecord)


def encode_capture(capture: CaptureRecord) -> bytes:
    r"""Encode a capture as one line of a ``captures.rank0.jsonl`` file.

    Example:
        >>> encode_capture(CaptureRecord("on-demand-7", CaptureTrigger.FILE, 5))
        b'{"folder":"on-demand-7","trigger":"file","step":5,"slowdown":null}\n'
    """
    return _encoder.encode(capture) + b"\n"


def read_captures(path: str | Path) -> tuple[CaptureRecord, ...]:
    """Read the captures of one rank.

    Args:
        path: A ``captures.rank0.jsonl`` file.

    Raises:
        TraceError: The file cannot be read, or a line within it is no capture.
    """
    return read_json_lines(path, _decoder.decode, what="record of a capture", restart=b'{"folder"')


def is_capture_folder(folder: Path) -> bool:
    """Whether a folder holds a capture of the run whose folder it lies in.

    Args:
        folder: The folder.
    """
    return is_capture_name(folder.name) and any(folder.parent.glob("captures.rank*.jsonl"))


def is_capture_name(name: str) -> bool:
    """Whether a name is one of a capture's folder.

    Example:
        >>> is_capture_name("slow-step-120"), is_capture_name("../slow-step-120")
        (True, False)
    """
    return _FOLDER.fullmatch(name) is not None
