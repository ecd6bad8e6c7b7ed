"""The model to measure: its module, its inputs and device, and the samples that it is measured on."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError
from lightning_perf.lazy_imports import find_object


class Subject(Struct, frozen=True):
    """The model under study, with its inputs and its device.

    Attributes:
        module: The model: float32, in eval mode, on the CPU. Never change it in place; change a deep copy.
        inputs: A batch of real inputs for the model, float32 on the CPU, ``(n, …)``.
        calibration: Real inputs for int8 calibration, from the training side of the split, ``(m, …)``.
    """

    module: nn.Module
    inputs: Tensor
    calibration: Tensor
    device: torch.device
    threads: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch dimension."""
        return tuple(self.inputs.shape[1:])


def shape_text(shape: tuple[int, ...]) -> str:
    """Format the shape of a batch of any size, for messages.

    Example:
        >>> shape_text((3, 224, 224))
        '(n, 3, 224, 224)'
    """
    return f"({', '.join(map(str, ('n', *shape)))})"


SAME = 1e-3
"""Largest allowed difference of two calls with the same inputs, as a share of the largest output. Sums over several
threads vary by less; randomness changes outputs by much more."""


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


def choose_device(name: str) -> str:
    """Return the device for the value of ``--device``: ``auto`` is ``cuda`` if PyTorch sees a GPU, else ``cpu``."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def usable_device(name: torch.device | str) -> torch.device:
    """Return the device with this name, after checking that it is available.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        InferenceError: The name is not valid, or PyTorch cannot see the device.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InferenceError(f"device {name}: PyTorch knows no such device. Use cpu, cuda or cuda:N.") from error
    if device.type not in ("cpu", "cuda"):
        raise InferenceError(f"device {device}: models can be measured on cpu or cuda only.")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InferenceError(f"device {device}: PyTorch sees no GPU here. Use cpu.")
        if (device.index or 0) >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise InferenceError(f"device {device}: PyTorch sees no GPU with this number. Use cuda:0 to cuda:{last}.")
    return device


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current device: events, compilers and engines use it, wherever the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def finish(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def cpu_threads(number: int) -> Iterator[None]:
    """Let torch use this many CPU threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_model(target: str, module: str | None) -> tuple[nn.Module, str]:
    """Load the model that the command line names.

    It names a Lightning checkpoint, or ``package.module:name`` of a module, or of a function or class that makes one
    without arguments.
    """
    path = Path(target)
    if path.suffix == ".ckpt" or (path.is_file() and path.suffix != ".py"):
        return _from_checkpoint(path, module)
    if module is not None:
        raise InferenceError(
            f"--module {module}: this option needs a checkpoint, but {target} is not one. Leave out --module."
        )
    if os.sep in target and ":" not in target and path.suffix != ".py":
        raise InferenceError(f"{target}: no such checkpoint. Give the path of a .ckpt file, or package.module:name.")
    found = find_object(target, "MODEL")
    made = found if isinstance(found, nn.Module) else _made(found, target)
    if not isinstance(made, nn.Module):
        raise InferenceError(
            f"MODEL {target} is a {type(made).__name__}. Name a torch.nn.Module, or a function that returns one."
        )
    return made, target.partition(":")[2]


def _made(factory: Any, text: str) -> Any:
    if not callable(factory):
        return factory
    try:
        return factory()
    except Exception as error:
        needed = _needed_arguments(factory)
        hint = f" It needs {needed}: write a function without arguments that returns the model." if needed else ""
        raise InferenceError(f"{text}: calling it failed ({reason_of(error)}).{hint}") from error


def _needed_arguments(factory: Any) -> str:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return ""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variable)


def _from_checkpoint(path: Path, module: str | None) -> tuple[nn.Module, str]:
    if not path.is_file():
        raise InferenceError(f"{path}: no such checkpoint. Check the path.")
    if module is None:
        raise InferenceError(f"{path}: a checkpoint holds weights, not the model. Add --module package.module:Class.")
    kind = find_object(module, "--module")
    if not (isinstance(kind, type) and hasattr(kind, "load_from_checkpoint")):
        raise InferenceError(f"--module {module}: not a LightningModule class. Name the class of the checkpoint.")
    try:
        return kind.load_from_checkpoint(path, map_location="cpu"), kind.__name__
    except Exception as error:
        raise InferenceError(f"{path}: {_checkpoint_problem(path, module, error)}") from error


def _checkpoint_problem(path: Path, module: str, error: Exception) -> str:
    text = str(error)
    if isinstance(error, RuntimeError) and "Error(s) in loading state_dict" in text:
        return f"this checkpoint does not belong to {module} ({_state_problem(text)})."
    try:
        torch.load(path, map_location="cpu", weights_only=True)
        readable = True
    except Exception as problem:
        readable = "weights_only" in str(problem).lower() or "WeightsUnpickler" in str(problem)
    if not readable:
        return f"the file is damaged or not a checkpoint ({reason_of(error)})."
    if isinstance(error, TypeError):
        return (
            f"{module} cannot be built from it ({reason_of(error)}). Call save_hyperparameters() in its __init__, "
            "or give a function that loads the checkpoint as MODEL."
        )
    return f"it cannot be loaded as {module} ({reason_of(error)})."


def _state_problem(text: str) -> str:
    """Return the first difference that torch lists, on one line."""
    lines = [" ".join(line.split()) for line in text.splitlines()[1:] if line.strip()]
    first = lines[0] if lines else text
    return first if len(first) <= 200 else first[:199] + "…"


NOISE = (
    "The inputs are random noise: latency and size are valid, but the outputs of int8 and other lossy variants on real "
    "inputs are unknown."
)


class Validation(Struct, frozen=True):
    """Held-out inputs with their labels, for measuring accuracy.

    Attributes:
        inputs: Inputs for the model, float32 on the CPU, ``(n, …)``.
        labels: The class index of each input, ``(n,)``.
        units: Number of independent inputs, for the confidence interval. Set it if some inputs are copies of each
            other; None means that all inputs are independent.
    """

    inputs: Tensor
    labels: Tensor
    units: int | None = None

    def __post_init__(self) -> None:
        """Check that inputs and labels match."""
        if len(self.inputs) == 0:
            raise InferenceError("The validation data are empty. Give --data with held-out inputs and labels.")
        if self.labels.shape != (len(self.inputs),):
            raise InferenceError(
                f"validation: labels have the shape {tuple(self.labels.shape)} for {len(self.inputs)} inputs. "
                "Give one class index per input."
            )
        if self.labels.dtype.is_floating_point or self.labels.dtype == torch.bool:
            raise InferenceError(f"validation: labels are {self.labels.dtype}. Give class indices as integers.")
        if self.units is not None and not 1 <= self.units <= len(self.inputs):
            raise InferenceError(f"validation: units must be from 1 to {len(self.inputs)} (inputs), got {self.units}.")


BATCH = 64

_WANTED = "Give a DataLoader or Dataset of (input, label), a pair of tensors, or a LightningDataModule"


class Samples(Struct, frozen=True):
    """Held-out inputs, calibration inputs and training data of one study.

    Attributes:
        inputs: Held-out inputs, float32, ``(n, …)``.
        validation: The same inputs with their labels; None if the labels are not classes.
        calibration: Inputs from the training side; None if only held-out data were given.
        training: Batches to fine-tune on, or a LightningDataModule; None if only held-out data were given, or if the
            labels are not classes.
        notes: Remarks for the reader of the results.
    """

    inputs: Tensor
    validation: Validation | None
    calibration: Tensor | None = None
    training: Any = None
    notes: tuple[str, ...] = ()


def gather_samples(data: Any, limit: int, calibration: int) -> Samples:
    """Collect validation and calibration data.

    From an indexable dataset, the inputs are spread evenly over the whole: many datasets are sorted by class, and their
    first inputs cover only a few classes. From a stream, the first inputs are taken.

    Args:
        data: A LightningDataModule, or held-out data: a DataLoader, a Dataset, or a pair ``(inputs, labels)`` of
            tensors.

    Raises:
        InferenceError: The data have another type, are empty, or cannot be read.
    """
    if hasattr(data, "val_dataloader") and hasattr(data, "setup"):
        return _from_module(data, limit, calibration)
    return _judged(*_pairs(data, limit, "validation data"))


def noise_samples(count: int, shape: Sequence[int]) -> Samples:
    """Return random inputs, to measure latency and size without data."""
    inputs = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
    return Samples(inputs, None, notes=(NOISE,))


def _from_module(data: Any, limit: int, calibration: int) -> Samples:
    name = type(data).__name__
    try:
        data.prepare_data()
        data.setup("fit")
        held_out = _first_loader(data.val_dataloader()) if _has_own(data, "val_dataloader") else None
        training = _first_loader(data.train_dataloader()) if _has_own(data, "train_dataloader") else None
    except Exception as error:
        raise InferenceError(f"{name}: setting up its data failed ({reason_of(error)}).") from error
    if held_out is None:
        raise InferenceError(f"{name} has no validation data. Let its val_dataloader() return a DataLoader.")
    samples = _judged(*_pairs(held_out, limit, "validation data"))
    if training is None:
        return samples
    inputs = _pairs(training, calibration, "training data")[0]
    return replace(samples, calibration=inputs, training=data if samples.validation is not None else None)


def _judged(inputs: Tensor, labels: Tensor) -> Samples:
    """Return the inputs, with `Validation` if their labels are classes."""
    if not labels.is_floating_point() and labels.dtype != torch.bool and labels.ndim == 1:
        return Samples(inputs, Validation(inputs, labels))
    note = (
        f"Accuracy was not measured and nothing was trained: the labels are {labels.dtype} of shape "
        f"{shape_text(tuple(labels.shape[1:]))}, not one class index per input. The table of outputs shows how far "
        "each variant is from the original."
    )
    return Samples(inputs, None, notes=(note,))


def _has_own(data: Any, method: str) -> bool:
    """Say whether a LightningDataModule defines this loader itself; Lightning's own defaults raise errors."""
    home: str = getattr(type(data), method).__module__
    return home.partition(".")[0] not in ("lightning", "pytorch_lightning")


def _first_loader(loaders: Any) -> Any:
    """Return the loader, or the first of several; None without a loader."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, Sequence):
        return loaders[0] if loaders else None
    return loaders


def _pairs(data: Any, limit: int, what: str) -> tuple[Tensor, Tensor]:
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        rows = _spread(len(data[0]), limit)
        return data[0][rows].float(), data[1][rows]
    if not isinstance(data, (Dataset, Iterable)):
        raise InferenceError(f"{what}: cannot read a {type(data).__name__}. {_WANTED}.")
    inputs_parts: list[Tensor] = []
    label_parts: list[Tensor] = []
    taken = 0
    try:
        for batch in islice(_loader(data, limit), limit):
            if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
                count = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
                raise InferenceError(
                    f"{what}: each batch is a {type(batch).__name__}{count}, not (inputs, labels). {_WANTED}."
                )
            inputs, labels = (torch.as_tensor(part) for part in batch)
            inputs_parts.append(inputs[: limit - taken].float().cpu())
            label_parts.append(labels[: limit - taken].cpu())
            taken += len(inputs_parts[-1])
            if taken >= limit:
                break
    except InferenceError:
        raise
    except Exception as error:  # the user's dataset runs here
        raise InferenceError(f"{what}: reading failed ({reason_of(error)}).") from error
    if not taken:
        raise InferenceError(f"The {what} are empty. Give at least one input.")
    return _joined(inputs_parts, "inputs", what), _joined(label_parts, "labels", what)


def _joined(parts: Sequence[Tensor], name: str, what: str) -> Tensor:
    shapes = list(dict.fromkeys(tuple(part.shape[1:]) for part in parts))
    if len(shapes) > 1:
        raise InferenceError(
            f"{what}: {name} have different shapes, e.g. {shapes[0]} and {shapes[1]}. Variants are built for one "
            "shape: resize or pad the inputs in the dataset."
        )
    return torch.cat(list(parts))


def _loader(data: Any, limit: int) -> Iterable[Any]:
    """Return batches of at most `limit` rows, spread evenly if rows can be indexed."""
    if isinstance(data, DataLoader):
        plain = type(data.batch_sampler) is BatchSampler and isinstance(
            data.sampler, (SequentialSampler, RandomSampler)
        )
        rows: Any = data.dataset
        if not plain or isinstance(rows, IterableDataset) or len(rows) <= limit:
            return data
        some = Subset(rows, _spread(len(rows), limit))
        return DataLoader(some, batch_size=data.batch_size, collate_fn=data.collate_fn)
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=BATCH)
    if isinstance(data, Dataset):
        return DataLoader(Subset(data, _spread(len(data), limit)), batch_size=BATCH)  # type: ignore[arg-type]
    return data  # type: ignore[no-any-return]


def _spread(length: int, most: int) -> list[int]:
    """Return at most `most` row numbers, evenly spread."""
    return [row * length // most for row in range(most)] if length > most else list(range(length))
