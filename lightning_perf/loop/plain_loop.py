"""A loop without a Trainer, as the engine sees it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import distributed

from lightning_perf.callbacks.recording.data_loading import Facts, loader_facts
from lightning_perf.callbacks.recording.window_notes import product_parameters
from lightning_perf.callbacks.run_record.device_health import device_uuids
from lightning_perf.callbacks.steps.lightning_hooks import HookTimes
from lightning_perf.run_files.launch import own_rank


class PlainLoop:
    """A loop without a Trainer. It counts its optimizer steps itself.

    Attributes:
        connected: Whether the ranks can talk to each other.
        loader: The loader of the training; None if it is not known.
        iterator: Its iterator in this epoch.
        other_batches: Batches of evaluations so far, as far as the loop sees them.
    """

    name = "PerfLoop"
    log_every = 0
    profiler: Any = None
    hook_times: HookTimes | None = None
    obstacle: str | None = None

    def __init__(self, model: Any, optimizers: Sequence[Any]) -> None:
        self.model = model
        self.optimizers = optimizers
        self.device = torch.device("cpu")
        self.rank, self.world_size, self.connected = 0, 1, False
        self.nodes: int | None = None
        self.loader: Any = None
        self.iterator: Any = None
        self.expected_steps: int | None = None
        self.global_step = self.other_batches = 0
        self.automatic = True

    def find_place(self) -> None:
        """Find the device, and the ranks of ``torch.distributed`` or those that a launcher such as torchrun names."""
        self.device = model_device(self.model)
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.world_size, self.connected = distributed.get_rank(), distributed.get_world_size(), True
        else:
            world_size = os.environ.get("WORLD_SIZE", "1")
            self.rank, self.world_size = own_rank(), int(world_size) if world_size.isdecimal() else 1
        local = os.environ.get("LOCAL_WORLD_SIZE", "")  # of torchrun
        self.nodes = self.world_size // int(local) if local.isdecimal() and int(local) else None

    def broadcast(self, value: str | None) -> str | None:
        """Return the value of rank 0. A collective call if the ranks are connected; otherwise other ranks get None."""
        if not self.connected:
            return value
        values = [value]
        device = self.device if self.device.type == "cuda" else None
        distributed.broadcast_object_list(values, src=0, device=device)
        return values[0]

    def step_number(self) -> int:
        """Return the number of the current step."""
        return self.global_step

    def validation_batches(self) -> int:
        """Return the batches of evaluations so far, as far as the loop sees them."""
        return self.other_batches

    def loader_iterators(self) -> Sequence[Any]:
        """Return the iterator of the loader."""
        return (self.iterator,)

    def loader_facts(self) -> Facts:
        """Return how batches are made."""
        # Fabric's loader holds the loader that it wraps.
        loader = getattr(self.loader, "_dataloader", self.loader)
        if loader is None:
            return {}
        facts = loader_facts(loader, self.model if self.model is not None else torch.nn.Module())
        with suppress(Exception):  # a loader without a length may raise any exception
            facts["batches_per_epoch"] = len(self.loader)
        return facts

    def product_parameters(self) -> int | None:
        """Return the number of the model's parameters that products use; None without a model, or if it is sharded."""
        if self.model is None:
            return None
        sharded = any("FullyShardedDataParallel" in type(part).__name__ for part in self.model.modules())
        return None if sharded else product_parameters(self.model)

    def tensor_source(self) -> tuple[Any, Iterable[Any]]:
        """Return the model, or None if it is not known, and the optimizers."""
        return self.model, self.optimizers

    def gpu_uuids(self) -> list[str]:
        """Return the name of its GPU."""
        return device_uuids([self.device])


def model_device(model: torch.nn.Module | None) -> torch.device:
    """Return the device of a model's parameters. Without any, it is the GPU that this process uses, or the CPU."""
    parameter = next(model.parameters(), None) if model is not None else None
    if parameter is not None:
        return parameter.device
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
