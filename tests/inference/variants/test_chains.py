"""Sizes of stored weights."""

from __future__ import annotations

import gzip

import pytest
import torch
from torch import nn

from lightning_perf.inference.variants.chains import measure_storage


def test_gzip_size_is_that_of_gzip():
    module = nn.Linear(64, 64)
    data = b"".join(tensor.numpy(force=True).tobytes() for tensor in module.state_dict().values())
    assert measure_storage(module).dense_bytes == len(data)
    assert measure_storage(module).gzip_bytes == pytest.approx(len(gzip.compress(data, 6)), abs=20)


def test_each_tensor_counts_once_whatever_its_type():
    module = nn.ModuleList([nn.Linear(4, 4, bias=False).bfloat16(), nn.BatchNorm1d(3)])
    module.append(module[0])
    module.register_buffer("empty", torch.zeros(0, 3))
    module.register_buffer("scalar", torch.tensor(True))
    assert measure_storage(module).dense_bytes == 2 * 16 + 4 * 4 * 3 + 8 + 1
