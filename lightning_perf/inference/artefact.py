"""An artefact: a folder that holds a built variant and all that a fresh process needs to run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lightning_perf import __version__
from lightning_perf.environment import version_facts
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.run_files.atomic import write_document

if TYPE_CHECKING:
    import torch

    from lightning_perf.inference.runtime import Call
    from lightning_perf.inference.subject import Subject

__all__ = ["ARTEFACT_FILE", "FORMAT_VERSION", "Artefact", "Origin", "load_artefact", "read_artefact", "save_artefact"]

FORMAT_VERSION = 1
"""Version of the folder's layout: raised by every change that an old reader would misread."""

ARTEFACT_FILE = "artefact.json"
"""The description, beside the files that the runtime wrote."""


@dataclass(frozen=True)
class Artefact:
    """What an artefact says of itself.

    Attributes:
        format_version: `FORMAT_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        created: When, in UTC.
        variant: Name of the variant, as ``prune-50+onnxruntime-int8``.
        runtime: Name of the runtime that loads it.
        transforms: What changed the model before, in order.
        source: Name of the model it was made of.
        device: Type of device it was built for, as ``cpu``.
        threads: CPU threads it was built for.
        input_shape: Shape of one input, without the batch.
        output_shape: Shape of one output, without the batch.
        dtype: Type of inputs and outputs.
        labels: Names of the outputs' classes in their order; empty when not given.
        files: Size in bytes of each file, by its path in the folder.
        provenance: Settings that decided the outcome, from the runtime.
        versions: Versions of Python and of the libraries that built it.
    """

    format_version: int
    tool_version: str
    created: str
    variant: str
    runtime: str
    transforms: tuple[str, ...]
    source: str
    device: str
    threads: int
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    dtype: str
    labels: tuple[str, ...]
    files: dict[str, int]
    provenance: dict[str, str]
    versions: dict[str, str]

    @property
    def size_bytes(self) -> int:
        """Size of what the runtime needs, without the description."""
        return sum(self.files.values())


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Which variant of which model an artefact is.

    Attributes:
        variant: Name of the variant.
        runtime: Name of the runtime.
        transforms: What changed the model before.
        source: Name of the model.
        labels: Names of the classes.
    """

    variant: str
    runtime: str
    transforms: tuple[str, ...]
    source: str
    labels: tuple[str, ...] = ()


def save_artefact(
    folder: Path,
    subject: Subject,
    origin: Origin,
    *,
    output_shape: tuple[int, ...],
    provenance: Mapping[str, str] | None = None,
) -> Artefact:
    """Describe what a runtime built, so that `load_artefact` can load it.

    Args:
        folder: What `Runtime.build` filled.
        subject: What it was built of.
        origin: Which variant of which model it is.
        output_shape: Shape of one output, without the batch.
        provenance: What `Runtime.build` returned.

    Returns:
        The description, as written to ``artefact.json``.
    """
    artefact = Artefact(
        format_version=FORMAT_VERSION,
        tool_version=__version__,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        variant=origin.variant,
        runtime=origin.runtime,
        transforms=origin.transforms,
        source=origin.source,
        device=subject.device.type,
        threads=subject.threads,
        input_shape=subject.input_shape,
        output_shape=output_shape,
        dtype="float32",
        labels=origin.labels,
        files=_files(folder),
        provenance=dict(provenance or {}),
        versions={
            name.partition(".")[2]: str(version) for name, version in version_facts().items() if version is not None
        },
    )
    write_document(folder / ARTEFACT_FILE, artefact)
    return artefact


def read_artefact(folder: Path) -> Artefact:
    """Read what an artefact says of itself and check that its files are there. Loads no runtime, and no torch.

    Args:
        folder: The artefact.

    Raises:
        InferenceError: It is none, is of another version, or is damaged; the message says which.
    """
    path = folder / ARTEFACT_FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InferenceError(
            f"{folder} is no exported variant: it has no {ARTEFACT_FILE}. Give a folder that `infer --out` wrote."
        ) from None
    except OSError as error:
        raise InferenceError(f"{path}: cannot be read ({error.strerror}).") from error
    try:
        version = msgspec.json.decode(data, type=_Head).format_version
        if version != FORMAT_VERSION:
            action = "Upgrade lightning-perf" if version > FORMAT_VERSION else "Export it again"
            raise InferenceError(f"{path}: format {version}, this lightning-perf reads {FORMAT_VERSION}. {action}.")
        artefact = msgspec.json.decode(data, type=Artefact)
    except msgspec.DecodeError as error:
        raise InferenceError(f"{path}: damaged ({error}). Export the variant again.") from error
    for name, size in artefact.files.items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise InferenceError(f"{folder}: {name} {state}. Copy the whole folder, or export the variant again.")
    return artefact


def load_artefact(folder: Path, device: torch.device | str = "cpu", threads: int = 1) -> Call:
    """Load an exported variant.

    Some runtimes run code from the folder (a pickled module, a compiled library): load only what you trust.

    Args:
        folder: The artefact.
        device: Where to run; the type of device it was built for.
        threads: CPU threads it may use.

    Returns:
        The model: float32 inputs ``(n, …)`` to float32 outputs ``(n, …)``. Inputs of another shape or type, and a
        runtime that gives back another number of rows, raise `InferenceError`.

    Raises:
        InferenceError: The folder is no artefact, is damaged, or was built for another device.
        VariantError: Its runtime cannot run here.
    """
    import torch

    from lightning_perf.inference.checked_call import CheckedCall
    from lightning_perf.inference.runtimes.registry import find_runtime

    artefact = read_artefact(folder)
    device = torch.device(device)
    if device.type != artefact.device:
        raise InferenceError(
            f"{folder} was built for {artefact.device} and cannot run on {device.type}. Export it there."
        )
    runtime = find_runtime(artefact.runtime)
    if reason := runtime.missing(device):
        raise VariantError(reason)
    return CheckedCall(runtime.load(folder, device, threads), artefact.input_shape, artefact.output_shape)


def _files(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ARTEFACT_FILE
    }


class _Head(msgspec.Struct):
    format_version: int
