"""Sizes of stored weights, and that packing loses nothing."""

from __future__ import annotations

import gzip

import pytest
import torch
from torch import nn

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.variants.chains import measure_storage, pack_weights, unpack_weights


class Mixed(nn.Module):
    """Weights of every kind: dense, few values, mostly zeros, shared, half precision, integers, empty, scalar."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.dense = nn.Parameter(torch.randn(30, 7, generator=generator))
        self.shared = nn.Parameter(torch.tensor([0.5, -1.25, 3.0])[torch.randint(3, (40, 25), generator=generator)])
        kept = torch.rand(1000, generator=generator) < 0.1
        self.sparse = nn.Parameter(torch.randn(1000, generator=generator) * kept)
        self.again = self.dense
        self.one_value = nn.Parameter(torch.full((65,), 2.0))
        self.low = nn.Parameter(torch.randn(50, generator=generator).bfloat16())
        self.strange = nn.Parameter(torch.tensor([-0.0, 0.0, float("nan"), float("inf")]))
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("empty", torch.zeros(0, 3))


def test_packing_is_exactly_reversible():
    module, other = Mixed(), Mixed()
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.zero_()
    unpack_weights(pack_weights(module), other)
    for name, tensor in module.state_dict().items():
        loaded = other.state_dict()[name]
        assert loaded.dtype == tensor.dtype
        assert loaded.shape == tensor.shape
        if tensor.dtype != torch.bfloat16:  # numpy has none
            assert loaded.numpy(force=True).tobytes() == tensor.numpy(force=True).tobytes()
        assert torch.equal(loaded.nan_to_num(5), tensor.nan_to_num(5))
    assert other.again is other.dense


@pytest.mark.parametrize(("values", "bits"), [(1, 0), (2, 1), (3, 2), (16, 4), (17, 5), (32, 5), (256, 8)])
def test_size_of_shared_weights_is_that_of_deep_compression(values: int, bits: int):
    module = nn.Linear(100, 80, bias=False)
    module.weight = nn.Parameter(torch.linspace(-1, 1, values)[torch.arange(8000) % values].reshape(80, 100))
    expected = (8000 * bits + 7) // 8 + values * 4  # n log2 k + k b, in whole bytes
    overhead = measure_storage(module).packed_bytes - expected
    assert 0 <= overhead < 50
    assert measure_storage(module).dense_bytes == 32_000


def test_size_of_sparse_weights_is_a_bit_a_number_and_the_rest():
    module = nn.Linear(100, 80, bias=False)
    with torch.no_grad():
        module.weight[:40] = 0
    assert 0 <= measure_storage(module).packed_bytes - (8000 // 8 + 4000 * 4) < 50


def test_random_weights_pack_to_what_they_are():
    storage = measure_storage(nn.Linear(100, 80))
    assert storage.dense_bytes == 4 * 8080
    assert 0 <= storage.packed_bytes - storage.dense_bytes < 100


def test_gzip_size_is_that_of_gzip():
    module = nn.Linear(64, 64)
    data = b"".join(tensor.numpy(force=True).tobytes() for tensor in module.state_dict().values())
    assert measure_storage(module).gzip_bytes == pytest.approx(len(gzip.compress(data, 6)), abs=20)


def test_damaged_and_foreign_weights_are_errors():
    module = nn.Linear(4, 4)
    data = pack_weights(module)
    with pytest.raises(InferenceError, match="damaged"):
        unpack_weights(data[: len(data) // 2], module)
    with pytest.raises(InferenceError, match="do not belong to this Linear"):
        unpack_weights(pack_weights(nn.Linear(5, 4)), module)
    with pytest.raises(InferenceError, match="do not belong to this Linear"):
        unpack_weights(pack_weights(nn.Sequential(nn.Linear(4, 4))), module)
