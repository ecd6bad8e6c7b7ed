from __future__ import annotations

import pytest

from lightning_perf.analysis.gradient_samples import GradientSample, LayerGradients, encode_sample, read_samples
from lightning_perf.errors import TraceError


def layer(exponent: int) -> LayerGradients:
    return LayerGradients("fp16", 0, 0, exponent, (100,))


def sample(layers: dict[str, LayerGradients], **hidden: LayerGradients) -> GradientSample:
    return GradientSample(0, 1024.0, layers, hidden)


def test_file_of_a_killed_run(tmp_path):
    samples = [sample({"a": layer(0)}), sample({"a": layer(1)}, a=layer(2))]
    path = tmp_path / "underflow.rank0.jsonl"
    path.write_bytes(encode_sample(samples[0]) + encode_sample(samples[1])[:40])
    assert read_samples(path) == tuple(samples[:1])
    path.write_bytes(encode_sample(samples[1])[:40] + encode_sample(samples[0]))
    assert read_samples(path) == tuple(samples[:1])
    path.write_bytes(b"{}\n" + encode_sample(samples[0]))
    with pytest.raises(TraceError, match="line 1 is no gradient sample"):
        read_samples(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_samples(tmp_path / "none")
