from __future__ import annotations

import pytest
import torch

from lightning_perf.callbacks.precision.switch import plugin_module, weight_cache_is_safe


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_probe_finds_this_torch_sound_and_draws_no_random_numbers(dtype):
    before = torch.get_rng_state()
    assert weight_cache_is_safe(torch.device("cpu"), dtype)
    assert torch.equal(torch.get_rng_state(), before)


def test_probe_finds_the_bug(monkeypatch):
    plain, cached = torch.nn.functional.linear, {}

    def linear(inputs, weight):
        # As torch once did: what was cast without gradients is used again with them.
        return cached.setdefault(id(weight), plain(inputs, weight).detach())

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    assert not weight_cache_is_safe(torch.device("cpu"), torch.bfloat16)


def test_trainers_of_other_packages_are_named():
    with pytest.raises(TypeError, match=r"builtins\.object is no Trainer of lightning\.pytorch or pytorch_lightning"):
        plugin_module(object())
