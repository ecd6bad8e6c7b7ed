from __future__ import annotations

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.run_files.numerics.samples import GRADIENT_SAMPLES, GradientSample, LayerGradients


def layer(exponent: int) -> LayerGradients:
    return LayerGradients("fp16", 0, 0, exponent, (100,))


def sample(layers: dict[str, LayerGradients], **hidden: LayerGradients) -> GradientSample:
    return GradientSample(0, 1024.0, layers, hidden)


def test_file_of_a_killed_run(tmp_path):
    samples = [sample({"a": layer(0)}), sample({"a": layer(1)}, a=layer(2))]
    path = tmp_path / "underflow.rank0.jsonl"
    path.write_bytes(GRADIENT_SAMPLES.encode(samples[0]) + GRADIENT_SAMPLES.encode(samples[1])[:40])
    assert GRADIENT_SAMPLES.read(path) == tuple(samples[:1])
    path.write_bytes(GRADIENT_SAMPLES.encode(samples[1])[:40] + GRADIENT_SAMPLES.encode(samples[0]))
    assert GRADIENT_SAMPLES.read(path) == tuple(samples[:1])
    path.write_bytes(b"{}\n" + GRADIENT_SAMPLES.encode(samples[0]))
    with pytest.raises(TraceError, match="line 1 is no gradient sample"):
        GRADIENT_SAMPLES.read(path)
    with pytest.raises(TraceError, match="cannot be read"):
        GRADIENT_SAMPLES.read(tmp_path / "none")
