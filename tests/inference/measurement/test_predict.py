import numpy as np
import pytest
import torch

from lightning_perf.inference.measurement.timing import BATCH, predict


@pytest.mark.parametrize("n", [1, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH - 5])
def test_each_input_has_its_output_and_no_batch_has_another_size(n):
    sizes = []

    def call(batch):
        sizes.append(len(batch))
        return 2 * batch

    inputs = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
    np.testing.assert_array_equal(predict(call, inputs, torch.device("cpu")), 2 * inputs)
    assert set(sizes) == {min(n, BATCH)}
