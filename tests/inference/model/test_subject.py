import pytest
import torch

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.model.subject import on_device, usable_device


def test_the_processor_is_always_there():
    assert usable_device("cpu") == torch.device("cpu")
    with on_device(torch.device("cpu")):
        pass


@pytest.mark.parametrize(("name", "said"), [("abacus", "knows no such device"), ("mps", "on cpu or cuda")])
def test_other_devices_are_refused(name, said):
    with pytest.raises(InferenceError, match=said):
        usable_device(name)


def test_a_gpu_has_to_be_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InferenceError, match="sees no GPU"):
        usable_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert usable_device("cuda") == torch.device("cuda")
    assert usable_device("cuda:1").index == 1
    with pytest.raises(InferenceError, match="cuda:0 to cuda:1"):
        usable_device("cuda:2")
