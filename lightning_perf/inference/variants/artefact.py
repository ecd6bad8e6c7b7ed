"""Save, describe and load a built variant: its files, ``artefact.json``, and a call with checked inputs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from lightning_perf import __version__
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.model import shape_text
from lightning_perf.machine.environment import version_facts
from lightning_perf.run_files.atomic import write_document
from lightning_perf.saved_json import decode_json

if TYPE_CHECKING:
    from lightning_perf.inference.model import Subject
    from lightning_perf.inference.runtimes.base import Call
    from lightning_perf.inference.variants.running import Origin


def checked_call(call: Call, input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> Call:
    """Return a call of a variant that raises an error for a wrong input or output.

    Compiled packages do not check shapes: one that AOTInductor compiled for batch 1 silently returns a single row for a
    batch of 2. The shapes are those of one input and one output, without the batch dimension.
    """

    def checked(inputs: Tensor) -> Tensor:
        if tuple(inputs.shape[1:]) != input_shape or inputs.ndim == 0:
            raise InferenceError(
                f"The inputs have shape {tuple(inputs.shape)}, but the variant takes {shape_text(input_shape)}."
            )
        if inputs.dtype != torch.float32:
            raise InferenceError(f"The inputs are {inputs.dtype}, but the variant takes torch.float32. Call .float().")
        outputs = call(inputs)
        wanted_shape = (len(inputs), *output_shape)
        if tuple(outputs.shape) != wanted_shape or outputs.dtype != torch.float32:
            raise InferenceError(
                f"For a batch of {len(inputs)}, the variant returned {tuple(outputs.shape)} of {outputs.dtype} instead "
                f"of {wanted_shape} of torch.float32. It does not support this batch size."
            )
        return outputs

    return checked


FORMAT_VERSION = 1
"""Version of the folder's layout. Increase it with every change that an old reader would misread."""

ARTEFACT_FILE = "artefact.json"
"""File name of the description, next to the files that the runtime wrote."""


class Artefact(Struct, frozen=True):
    """The description of an artefact.

    Attributes:
        format_version: `FORMAT_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        created: Time of writing, in UTC.
        variant: Name of the variant, e.g. ``prune-50+onnxruntime-int8``.
        runtime: Name of the runtime that loads it.
        transforms: Transforms that changed the model, in order.
        source: Name of the model that it was built from.
        device: Type of device that it was built for, e.g. ``cpu``.
        threads: CPU threads that it was built for.
        input_shape: Shape of one input, without the batch dimension.
        output_shape: Shape of one output, without the batch dimension.
        dtype: Type of inputs and outputs.
        labels: Names of the classes in the order of the outputs; empty if unknown.
        files: Size of each file in bytes, by its path in the folder.
        provenance: Settings of the runtime that affect the result.
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
        """Size of the files that the runtime needs, without the description."""
        return sum(self.files.values())


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that affect speed and outputs, by name."""
    return {name.partition(".")[2]: str(version) for name, version in version_facts().items() if version is not None}


def save_artefact(
    folder: Path,
    subject: Subject,
    origin: Origin,
    *,
    output_shape: tuple[int, ...],
    provenance: Mapping[str, str] | None = None,
) -> None:
    """Write the description of a built variant, so that `load_artefact` can load it."""
    artefact = Artefact(
        format_version=FORMAT_VERSION,
        tool_version=__version__,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **msgspec.structs.asdict(origin),
        device=subject.device.type,
        threads=subject.threads,
        input_shape=subject.input_shape,
        output_shape=output_shape,
        dtype="float32",
        files={
            path.relative_to(folder).as_posix(): path.stat().st_size
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != ARTEFACT_FILE
        },
        provenance=dict(provenance or {}),
        versions=library_versions(),
    )
    write_document(folder / ARTEFACT_FILE, artefact)


def read_artefact(folder: Path) -> Artefact:
    """Read the description of an artefact and check that its files exist. Loads no runtime.

    Args:
        folder: The artefact.

    Raises:
        InferenceError: The folder is not an artefact, has another version, or is damaged; the message says which.
    """
    path = folder / ARTEFACT_FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InferenceError(
            f"{folder} is not an exported variant: it has no {ARTEFACT_FILE}. Give a folder that `infer --out` wrote."
        ) from None
    except OSError as error:
        raise InferenceError(f"{path}: cannot be read ({error.strerror}).") from error
    try:
        version = decode_json(data, _Head).format_version
        if version != FORMAT_VERSION:
            action = "Upgrade lightning-perf" if version > FORMAT_VERSION else "Export it again"
            raise InferenceError(
                f"{path} has format {version}, but this lightning-perf reads format {FORMAT_VERSION}. {action}."
            )
        artefact: Artefact = decode_json(data, Artefact)
    except msgspec.DecodeError as error:
        raise InferenceError(f"{path} is damaged ({error}). Export the variant again.") from error
    for name, size in artefact.files.items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise InferenceError(f"{folder}: {name} {state}. Copy the whole folder, or export the variant again.")
    return artefact


def load_artefact(folder: Path, device: torch.device | str = "cpu", threads: int = 1) -> Call:
    """Load an exported variant as a function from inputs to outputs.

    Some runtimes run code from the folder (a pickled module, a compiled library): load only folders that you trust.

    Args:
        folder: The artefact.
        device: The device to run on; its type must be the one that the artefact was built for.
        threads: CPU threads that it may use.

    Returns:
        The model, from float32 inputs ``(n, …)`` to float32 outputs ``(n, …)``. It raises `InferenceError` for inputs
        of another shape or type, and if the runtime returns another number of rows.

    Raises:
        InferenceError: The folder is not an artefact, is damaged, or was built for another device.
        VariantError: The runtime cannot run on this machine.
    """
    from lightning_perf.inference.runtimes.registry import find_runtime

    artefact = read_artefact(folder)
    device = torch.device(device)
    if device.type != artefact.device:
        raise InferenceError(
            f"{folder} was built for {artefact.device} and cannot run on {device.type}. Export it on {device.type}."
        )
    runtime = find_runtime(artefact.runtime)
    if reason := runtime.missing(device):
        raise VariantError(reason)
    return checked_call(runtime.load(folder, device, threads), artefact.input_shape, artefact.output_shape)


class _Head(msgspec.Struct):
    format_version: int
