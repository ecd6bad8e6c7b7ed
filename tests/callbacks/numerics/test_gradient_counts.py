from __future__ import annotations

import pytest
import torch

from lightning_perf.callbacks.numerics.underflow import VALUES_A_PARAMETER, CountedGradients


def test_large_parameters_are_sampled_evenly():
    ramp = torch.arange(1, 10 * VALUES_A_PARAMETER + 1, dtype=torch.float32)
    (row,) = CountedGradients([(0, ramp)], 1).read(["fp16"])
    assert sum(row.counts) == VALUES_A_PARAMETER
    assert row.first_exponent + len(row.counts) - 1 == 17  # 163840 is between 2**17 and 2**18
    assert row.counts[-2] == pytest.approx(65536 / 10, abs=1)


def test_every_shape_and_value_is_counted():
    inf = float("inf")
    gradients = [
        (0, torch.tensor([0.0, -0.0, 1.0, -1.5, inf, -inf, float("nan")])),
        (1, torch.tensor(2.0**-60)),
        (1, torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        (2, torch.sparse_coo_tensor([[1, 1]], [1.0, 3.0], (4,), check_invariants=True)),
        (2, torch.ones(0)),
        (2, torch.ones(3, dtype=torch.bfloat16)),
    ]
    first, second, third = CountedGradients(gradients, 3).read(["fp16", "fp16", "fp32"])
    assert (first.zeros, first.nonfinite, first.first_exponent, first.counts) == (2, 3, 0, (2,))
    assert (second.first_exponent, second.counts[0], second.counts[-1]) == (-40, 1, 120)
    assert (third.first_exponent, third.counts, third.arithmetic) == (0, (3, 0, 1), "fp32")
