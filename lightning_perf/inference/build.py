"""Build one variant in a process of its own, and check the original beforehand."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightning_perf.inference.artefact import ARTEFACT_FILE, Artefact, read_artefact
from lightning_perf.inference.errors import InferenceError, VariantError, worker_errors
from lightning_perf.inference.messages import BuildOrder, Built
from lightning_perf.inference.runtimes.faults import reason_of
from lightning_perf.inference.subject import Subject, shape_text
from lightning_perf.inference.variant import Variant
from lightning_perf.workers.process import WorkerProcess

__all__ = ["BuiltVariant", "build_variant", "check_subject", "save_subject"]

SAME = 1e-3
"""How far two calls with the same inputs may be apart, as a share of the largest output: sums of several threads vary,
randomness moves outputs by much more."""

_MAIN = "__main__"


@dataclass(frozen=True)
class BuiltVariant:
    """An artefact, and what the process that built it got out of it.

    Attributes:
        artefact: Its description.
        folder: Where it is.
        outputs: ``.npy`` file of its outputs on the subject's inputs.
        seconds: Time that building took.
    """

    artefact: Artefact
    folder: Path
    outputs: Path
    seconds: float


def check_subject(subject: Subject) -> Tensor:
    """Run the original once, and see that it can be studied.

    Args:
        subject: The model and its inputs.

    Returns:
        Its outputs, ``(n, …)``.

    Raises:
        InferenceError: It does not take these inputs, changes them, does not give one tensor of finite numbers, or does
            not give the same ones again.
    """
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
            f"({reason_of(error)}). Check the data, or --shape. Variants have one float32 input: wrap a model of "
            "several inputs, or of token numbers, in a module that makes them of one such tensor."
        ) from error
    if not isinstance(outputs, Tensor):
        raise InferenceError(
            f"{name} gives a {type(outputs).__name__}, not one tensor. Wrap it in a module that returns its logits."
        )
    if outputs.ndim == 0 or len(outputs) != len(before):
        raise InferenceError(f"{name} gives {tuple(outputs.shape)} for a batch of {len(before)}: not a row an input.")
    if not torch.isfinite(outputs).all():
        raise InferenceError(f"{name} gives outputs that are not finite on these inputs. Check weights and data.")
    if not torch.equal(given, before):
        raise InferenceError(
            f"{name} changes its inputs in place: a second call would see other numbers. "
            "Use the operation that makes a new tensor, as div instead of div_."
        )
    if float((again - outputs).abs().max()) > SAME * float(outputs.abs().max()):
        raise InferenceError(
            f"{name} gives other outputs for the same inputs, in eval mode: nothing can be compared with them. Is "
            "there a dropout without training=self.training, or another random number, in its forward?"
        )
    if outputs.dtype != torch.float32:
        raise InferenceError(f"{name} gives {outputs.dtype}. Study it in float32.")
    return outputs


def save_subject(subject: Subject, path: Path) -> None:
    """Write a subject for the processes that build its variants.

    Raises:
        VariantError: Its module cannot be carried to another process.
    """
    homeless = sorted({type(m).__name__ for m in subject.module.modules() if type(m).__module__ == _MAIN})
    if homeless:
        raise VariantError(
            f"{', '.join(homeless)} is defined in the program itself: a fresh process cannot import it. "
            "Move the class to a module."
        )
    try:
        torch.save(subject, path)
    except Exception as error:  # pickling runs code of the model's, which may raise anything
        raise VariantError(f"the model cannot be saved whole ({reason_of(error)})") from error


def build_variant(
    variant: Variant,
    subject: Path,
    folder: Path,
    work: Path,
    *,
    source: str,
    labels: tuple[str, ...],
    threads: int,
    timeout_s: float,
) -> BuiltVariant:
    """Build a variant.

    Args:
        variant: What to build.
        subject: What `save_subject` wrote, already changed by the variant's transforms.
        folder: Where the artefact goes; an artefact that is there is replaced when the new one is complete.
        work: Folder for files that are of no use later.
        source: Name of the model.
        labels: Names of its classes.
        threads: CPU threads of the subject.
        timeout_s: What it may take.

    Raises:
        InferenceError: Something else than an artefact is in the folder.
        VariantError: It cannot be built; the message says why.
    """
    if folder.exists() and not (folder / ARTEFACT_FILE).is_file():
        raise InferenceError(f"{folder}: exists and is no exported variant. Give another --out, or move it away.")
    staging = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise InferenceError(f"{staging.parent}: cannot be written ({error.strerror}). Give another --out.") from error
    outputs = work / f"{folder.name}.outputs.npy"
    order = BuildOrder(
        subject=str(subject),
        folder=str(staging),
        outputs=str(outputs),
        variant=variant.name,
        runtime=variant.runtime.name,
        transforms=tuple(transform.name for transform in variant.transforms),
        source=source,
        labels=labels,
    )
    try:
        # The search path of this process: the model's module may lie where only it looks.
        environment = {"OMP_NUM_THREADS": str(threads)}
        with (
            worker_errors(),
            WorkerProcess(
                "lightning_perf.inference.worker:build", order, path=sys.path, environment=environment
            ) as worker,
        ):
            built = worker.receive(Built, timeout_s=timeout_s)
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return BuiltVariant(read_artefact(folder), folder, outputs, built.seconds)
