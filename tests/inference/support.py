"""A small model and documents for the tests; importable by a fresh process."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_perf.inference.measurement.accuracy import Accuracy
from lightning_perf.inference.measurement.measure import Effort, Latency
from lightning_perf.inference.results.tradeoff import Cell, ColdStart, Machine, Reload, Row, Tradeoff
from lightning_perf.statistics.values import Estimate


class Tiny(nn.Module):
    """Pictures ``(n, 1, 8, 8)`` to logits of 5 classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(pictures)).mean((2, 3)))


class InPlace(Tiny):
    def forward(self, pictures: Tensor) -> Tensor:
        return super().forward(pictures.div_(255))


class Random(Tiny):
    def forward(self, pictures: Tensor) -> Tensor:
        return torch.nn.functional.dropout(super().forward(pictures))  # which trains unless told otherwise


def needs_an_argument(width):
    return Tiny()


def no_model():
    return 3


def broken():
    raise OSError("the disk is gone")


def estimate(value, low=None, high=None):
    return Estimate(value, low, high, 0.95, 10, "test")


def row(name, p50_ms=1.0, correct=90, size=1000, p90_ms=None, **changes):
    latency = Latency(1, 1, 200, 0.9 * p50_ms, p50_ms, p90_ms or 1.1 * p50_ms, 2 * p50_ms, p50_ms, None, 1000 / p50_ms,
                      None if name == "eager" else estimate(1 / p50_ms, 0.9 / p50_ms, 1.1 / p50_ms))  # fmt: skip
    accuracy = Accuracy(correct, 100, 100, 0.8, 0.95, 0.99, 90.0 - correct, -1.5, 2.5 + 90 - correct)
    fields = {
        "parameters": 100, "size_bytes": size, "build_s": 1.0, "cold": ColdStart(1.0, 2.0, 10**8, None),
        "reload": Reload(0.0, 1e-3), "output_error": 1e-6, "accuracy": accuracy, "latencies": (latency,),
    } | changes  # fmt: skip
    return Row(name, (), name, "a runtime", **fields)


def tradeoff(rows, **changes):
    cell = Cell(
        1,
        1,
        estimate(1.0, 0.99, 1.02),
        0.02,
        tuple(r.variant for r in rows if r.variant != "eager" and r.latencies),
        (rows[0].variant,),
    )
    machine = Machine("A CPU", "cpu", "A CPU", 2, "Linux", 0.1, 1.0, {"torch": "2.15.0"})
    fields = {"notes": ("a note [red]",), "rows": tuple(rows), "cells": (cell,)} | changes
    return Tradeoff(1, 1, "0.1.0", "Tiny", (1, 8, 8), machine, Effort(), 100, **fields)
