"""The entries of a history: one JSON object per run, and one per named baseline."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import msgspec

from lightning_perf.errors import UserError
from lightning_perf.run_files.run_record import FactValue
from lightning_perf.saved_json import decode_json, decoder

VERSION = 1
"""Version of the entries. A reader skips entries of a newer version, and reports them."""


class HistoryError(UserError):
    """A history cannot be read or written. The message says where, why, and how to fix it."""


Moment = Annotated[float, msgspec.Meta(ge=-6e10, le=2.5e11)]
"""Seconds since 1970 in the years 69 to 9892, which have a date."""


class StoredRun(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """The parts of a run that a history keeps.

    Attributes:
        commit_unix_s: Time of the commit; None if git did not know it when the run was added.
        subject: First line of the commit's message, or None.
        facts: The fingerprint, without the revision.
        quality: Name of the logged metric behind ``accuracy``, ``loss`` or ``score``, or None.
        left_out: Why the run does not count, e.g. ``warm-up``; None if it does.
    """

    run_id: str
    started_unix_s: Moment
    added_unix_s: Moment
    commit: str | None
    facts: Mapping[str, FactValue]
    values: Mapping[str, float | None]
    commit_unix_s: Moment | None = None
    subject: str | None = None
    quality: str | None = None
    left_out: str | None = None
    study: str | None = None
    arm: str | None = None
    version: int = VERSION


class StoredBaseline(msgspec.Struct, frozen=True, kw_only=True, tag="baseline"):
    """A name for a commit. The last entry of a name counts."""

    name: str
    commit: str
    added_unix_s: Moment
    version: int = VERSION


Entry: TypeAlias = StoredRun | StoredBaseline


class _Head(msgspec.Struct):
    version: int


def decode_entry(line: bytes) -> Entry | str:
    """Decode an entry, or return the problem: ``damaged`` or ``newer``."""
    try:
        return _DECODE(line)
    except msgspec.DecodeError:
        pass
    try:
        return "newer" if decode_json(line, _Head).version > VERSION else "damaged"
    except msgspec.DecodeError:
        return "damaged"


_DECODE: Callable[[bytes], Entry] = decoder(Entry)


def object_name(entry: Entry) -> str:
    """Return a file name for an entry: its time, and a hash that other entries do not have.

    A run has the same name whenever it is added. Names from elsewhere cannot lead out of the folder.
    """
    if isinstance(entry, StoredRun):
        begun, name = entry.started_unix_s, entry.run_id
    else:
        begun, name = entry.added_unix_s, f"{entry.name}\0{entry.commit}\0{entry.added_unix_s}"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(min(max(begun, 0.0), 2.5e11)))
    return f"{stamp}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
