from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.sweep import backbones
from lightning_perf.inference.sweep.backbones import DEFAULT_BACKBONES, make_backbone


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("a backbone asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuse)


def outputs(module: nn.Module, *shape: int) -> torch.Size:
    with torch.inference_mode():
        return module(torch.zeros(2, *shape)).shape


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "squeezenet1_1", "torchvision:shufflenet_v2_x0_5"])
@pytest.mark.parametrize("channels", [1, 3])
def test_networks_of_torchvision_get_channels_and_classes(name: str, channels: int):
    pytest.importorskip("torchvision", reason="needs the recipes extra")
    module, count = make_backbone(name, (channels, 64, 64), 24, batch=2)
    assert outputs(module, channels, 64, 64) == count.output_shape == (2, 24)
    assert not module.training
    assert count.parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", ["timm:mobilenetv4_conv_small_035", "timm:vit_tiny_patch16_224"])
def test_networks_of_timm_get_channels_classes_and_size(name: str):
    pytest.importorskip("timm", reason="needs the timm extra")
    module, count = make_backbone(name, (1, 64, 64), 24, batch=2)
    assert outputs(module, 1, 64, 64) == count.output_shape == (2, 24)


def test_transformers_of_torchvision_are_built_for_the_size():
    pytest.importorskip("torchvision", reason="needs the recipes extra")
    with torch.device("meta"):  # 88 million weights that nobody needs
        module, count = make_backbone("vit_b_32", (3, 64, 64), 5)
    assert module.image_size == 64
    assert count.output_shape == (1, 5)


def test_bad_names_and_shapes_are_reasons(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torchvision", reason="needs the recipes extra")
    with pytest.raises(VariantError, match="neither torchvision nor timm has a model 'nosuch'"):
        make_backbone("nosuch", (3, 64, 64), 5)
    with pytest.raises(VariantError, match="torchvision has no model 'nosuch'"):
        make_backbone("torchvision:nosuch", (3, 64, 64), 5)
    with pytest.raises(VariantError, match="unknown source 'keras'"):
        make_backbone("keras:resnet50", (3, 64, 64), 5)
    with pytest.raises(VariantError, match="does not take such inputs"):
        make_backbone("alexnet", (3, 16, 16), 5)
    monkeypatch.setattr(backbones, "find_spec", lambda name: None)
    with pytest.raises(VariantError, match="Not installed: torchvision, timm"):
        make_backbone("resnet18", (3, 64, 64), 5)
    with pytest.raises(VariantError, match=r"Not installed: timm\. Install with: pip install"):
        make_backbone("timm:resnet18", (3, 64, 64), 5)


def test_a_hub_address_is_not_followed():
    pytest.importorskip("timm", reason="needs the timm extra")
    for name in ("hf-hub:timm/resnet18.a1_in1k", "timm:hf-hub:timm/resnet18.a1_in1k", "timm:hf_hub/resnet18"):
        with pytest.raises(VariantError):
            make_backbone(name, (3, 64, 64), 5)


def test_default_names_exist():
    models = pytest.importorskip("torchvision.models", reason="needs the recipes extra")
    assert set(DEFAULT_BACKBONES) <= set(models.list_models(module=models))
