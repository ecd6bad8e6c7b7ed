"""Check the original, and build each variant in a process of its own."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError, VariantError, worker_errors
from lightning_perf.inference.model.subject import Subject, shape_text
from lightning_perf.inference.variants.artefact import ARTEFACT_FILE, Artefact, read_artefact
from lightning_perf.inference.variants.worker import BuildOrder, Built, Origin
from lightning_perf.workers.channel import Message
from lightning_perf.workers.process import WorkerProcess

SAME = 1e-3
"""Largest allowed difference of two calls with the same inputs, as a share of the largest output. Sums over several
threads vary by less; randomness changes outputs by much more."""

_MAIN = "__main__"


@dataclass(frozen=True)
class BuiltVariant:
    """An artefact, with its outputs in the process that built it.

    Attributes:
        outputs: ``.npy`` file of its outputs on the subject's inputs.
    """

    artefact: Artefact
    folder: Path
    outputs: Path
    seconds: float


def check_subject(subject: Subject) -> Tensor:
    """Run the original twice, check that it can be studied, and return its outputs, ``(n, …)``."""
    module, name = subject.module, type(subject.module).__name__
    before = subject.inputs.clone()
    try:
        with torch.inference_mode():
            outputs = module(subject.inputs.clone())
            given = subject.inputs.clone()
            again = module(given)
    except Exception as error:
        raise InferenceError(
            f"{name} does not take inputs of shape {shape_text(subject.input_shape)} and type {subject.inputs.dtype} "
            f"({reason_of(error)}). Check the data, or --shape. Variants have one float32 input: wrap a model with "
            "several inputs, or with token IDs, in a module that derives them from one such tensor."
        ) from error
    if not isinstance(outputs, Tensor):
        raise InferenceError(
            f"{name} returns a {type(outputs).__name__}, not one tensor. Wrap it in a module that returns its logits."
        )
    if outputs.ndim == 0 or len(outputs) != len(before):
        raise InferenceError(
            f"{name} returns the shape {tuple(outputs.shape)} for a batch of {len(before)}. Return one row per input."
        )
    if not torch.isfinite(outputs).all():
        raise InferenceError(f"{name} returns NaN or infinite outputs for these inputs. Check weights and data.")
    if not torch.equal(given, before):
        raise InferenceError(
            f"{name} changes its inputs in place, so a second call would see other values. "
            "Use operations that return a new tensor, e.g. div instead of div_."
        )
    if float((again - outputs).abs().max()) > SAME * float(outputs.abs().max()):
        raise InferenceError(
            f"{name} returns other outputs for the same inputs, in eval mode, so nothing can be compared with it. "
            "Remove random numbers from its forward, e.g. a dropout without training=self.training."
        )
    if outputs.dtype != torch.float32:
        raise InferenceError(f"{name} returns {outputs.dtype}. Convert the model to float32.")
    return outputs


def save_subject(subject: Subject, path: Path) -> None:
    """Write a subject for the processes that build its variants."""
    homeless = sorted({type(m).__name__ for m in subject.module.modules() if type(m).__module__ == _MAIN})
    if homeless:
        raise VariantError(
            f"{', '.join(homeless)} is defined in the main script, which a fresh process cannot import. "
            "Move the class to a module."
        )
    try:
        torch.save(subject, path)
    except Exception as error:  # pickling runs code of the model's, which may raise anything
        raise VariantError(f"the model cannot be saved as a whole ({reason_of(error)})") from error


def build_variant(
    origin: Origin, subject: Path, folder: Path, work: Path, *, threads: int, timeout_s: float
) -> BuiltVariant:
    """Build a variant from the file of `save_subject`, after its transforms, in a process of its own.

    An existing artefact in `folder` is replaced once the new one is complete. `work` is for temporary files.
    """
    if folder.exists() and not (folder / ARTEFACT_FILE).is_file():
        raise InferenceError(f"{folder} exists and is not an exported variant. Give another --out, or move it away.")
    staging = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise InferenceError(f"{staging.parent} cannot be written ({error.strerror}). Give another --out.") from error
    outputs = work / f"{folder.name}.outputs.npy"
    order = BuildOrder(str(subject), str(staging), str(outputs), origin)
    try:
        with worker_errors(), start_worker("build", order, threads) as worker:
            built = worker.receive(Built, timeout_s=timeout_s)
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return BuiltVariant(read_artefact(folder), folder, outputs, built.seconds)


def start_worker(task: str, order: Message, threads: int) -> WorkerProcess:
    """Start a task of `variants.worker`, with this process's search path: the model's module may be on it."""
    environment = {"OMP_NUM_THREADS": str(threads)}
    return WorkerProcess(
        f"lightning_perf.inference.variants.worker:{task}", order, path=sys.path, environment=environment
    )
