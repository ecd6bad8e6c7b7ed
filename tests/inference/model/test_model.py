"""The model and its device by name, and the samples of every kind of data."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from lightning_perf.errors import UserError
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.model import Validation, gather_samples, load_model, on_device, usable_device
from tests.inference.support import CPU, Tiny

INPUTS, LABELS = torch.arange(40.0).reshape(10, 4), torch.arange(10) % 3
ROWS = TensorDataset(INPUTS, LABELS)
SPREAD = [0, 1, 2, 4, 5, 7, 8]  # 7 of 10


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(INPUTS, LABELS, strict=True))


class Module:
    def __init__(self, held_out=ROWS, training=ROWS):
        self.held_out, self.training = held_out, training

    def prepare_data(self):
        pass

    def setup(self, stage):
        assert stage == "fit"

    def train_dataloader(self):
        return DataLoader(self.training, batch_size=4)

    def val_dataloader(self):
        return DataLoader(self.held_out, batch_size=3) if self.held_out else None


class StreamModule(Module):
    """A loader of a stream has no length: asking whether it is empty would fail."""

    def train_dataloader(self):
        return {"left": DataLoader(Stream(), batch_size=4), "right": None}

    def val_dataloader(self):
        return [DataLoader(Stream(), batch_size=3), None]


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        ((INPUTS, LABELS), SPREAD),
        (ROWS, SPREAD),
        (DataLoader(ROWS, batch_size=3), SPREAD),
        (DataLoader(ROWS, batch_size=3, shuffle=True), SPREAD),
        (Stream(), range(7)),
        (DataLoader(Stream(), batch_size=3), range(7)),
        ([(INPUTS[:5], LABELS[:5]), (INPUTS[5:], LABELS[5:])], range(7)),
        (TensorDataset(INPUTS[:7], LABELS[:7]), range(7)),
        (DataLoader(TensorDataset(INPUTS[:5], LABELS[:5]), batch_size=3), range(5)),
    ],
)
def test_inputs_are_spread_over_data_that_can_be_indexed_and_the_first_of_others(data, rows):
    samples = gather_samples(data, limit=7, calibration=5)
    torch.testing.assert_close(samples.validation.inputs, INPUTS[list(rows)])
    torch.testing.assert_close(samples.validation.labels, LABELS[list(rows)])
    assert samples.inputs is samples.validation.inputs
    assert samples.calibration is samples.training is None
    assert samples.notes == ()


@pytest.mark.parametrize(("data", "calibration"), [(Module(), [0, 2, 4, 6, 8]), (StreamModule(), range(5))])
def test_a_data_module_gives_training_data_too(data, calibration):
    samples = gather_samples(data, limit=7, calibration=5)
    torch.testing.assert_close(samples.calibration, INPUTS[list(calibration)])
    assert len(samples.inputs) == 7
    assert samples.training is data


def test_lightnings_own_loaders_which_raise_are_none():
    lightning = pytest.importorskip("lightning.pytorch", reason="needs the train extra")

    class OnlyHeldOut(lightning.LightningDataModule):
        def val_dataloader(self):
            return DataLoader(ROWS)

    samples = gather_samples(OnlyHeldOut(), 5, 5)
    assert len(samples.inputs) == 5
    assert samples.calibration is samples.training is None
    with pytest.raises(InferenceError, match=r"LightningDataModule has no validation data"):
        gather_samples(lightning.LightningDataModule(), 5, 5)


@pytest.mark.parametrize(
    "labels", [torch.rand(10, 1), torch.rand(10), torch.ones(10, dtype=torch.bool), LABELS[:, None]]
)
def test_labels_that_are_no_classes_leave_inputs_to_time_and_calibrate_with(labels):
    rows = TensorDataset(INPUTS, labels)
    samples = gather_samples(Module(rows, rows), 10, 10)
    torch.testing.assert_close(samples.inputs, INPUTS)
    torch.testing.assert_close(samples.calibration, INPUTS)
    assert samples.validation is samples.training is None  # the training minimises a cross-entropy
    assert str(labels.dtype) in samples.notes[0]


class Growing(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(1, 2 + index), 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (3, "cannot read a int"),
        ([], "are empty"),
        (TensorDataset(INPUTS[:0], LABELS[:0]), "validation data are empty"),
        (Module(held_out=None), "no validation data"),
        (DataLoader(torch.zeros(4, 2)), "not (inputs, labels)"),  # type: ignore[arg-type]
        (TensorDataset(INPUTS, INPUTS, LABELS), "a list of 3, not (inputs, labels)"),
        (DataLoader([object()]), "reading failed"),  # type: ignore[arg-type]
        (Growing(), "reading failed"),
        (DataLoader(Growing(), batch_size=1), "have different shapes, e.g. (1, 2) and (1, 3)"),
    ],
)
def test_data_of_no_use_are_told(data, said):
    with pytest.raises(InferenceError) as error:
        gather_samples(data, 5, 5)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("inputs", "labels", "units", "said"),
    [
        (torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64), None, "validation data are empty"),
        (torch.zeros(2, 1), torch.zeros(3, dtype=torch.int64), None, "for 2 inputs"),
        (torch.zeros(2, 1), torch.zeros(2), None, "class indices"),
        (torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64), 3, "units must be from 1 to 2 \\(inputs\\), got 3"),
    ],
)
def test_validation_data_that_do_not_fit_are_refused(inputs, labels, units, said):
    with pytest.raises(InferenceError, match=said):
        Validation(inputs, labels, units)


HERE = "tests.inference.support"
BORING = "lightning.pytorch.demos.boring_classes:BoringModel"


def test_a_class_and_its_name():
    module, name = load_model(f"{HERE}:Tiny", None)
    assert type(module).__name__ == name == "Tiny"


@pytest.mark.parametrize(
    ("target", "module", "said"),
    [
        ("nonsense", None, "expected package.module:name"),
        ("no_such_package:Model", None, "there is no module no_such_package"),
        (f"{HERE}:Large", None, "has no Large. It has"),
        (f"{HERE}:no_model", None, "is a int. Name a torch.nn.Module"),
        (f"{HERE}:needs_an_argument", None, "It needs width"),
        (f"{HERE}:broken", None, "OSError: the disk is gone"),
        (f"{HERE}:Tiny", f"{HERE}:Tiny", "this option needs a checkpoint"),
        ("missing.ckpt", f"{HERE}:Tiny", "no such checkpoint"),
        ("logs/version_0", None, "no such checkpoint"),
    ],
)
def test_models_that_cannot_be_found_are_told(target, module, said):
    with pytest.raises(UserError) as error:
        load_model(target, module)
    assert said in str(error.value)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    from lightning.pytorch import Trainer

    from lightning_perf.inference.training import Distillation

    path = tmp_path_factory.mktemp("saved") / "last.ckpt"
    trainer = Trainer(max_epochs=0, logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.strategy.connect(Distillation(Tiny()))
    trainer.save_checkpoint(path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("module", "size", "said"),
    [
        (None, None, "Add --module"),
        (f"{HERE}:Tiny", None, "not a LightningModule class"),
        ("lightning_perf.inference.training:Distillation", None, "save_hyperparameters"),
        (BORING, None, "this checkpoint does not belong to"),
        (BORING, 100, "damaged or not a checkpoint"),
    ],
)
def test_a_checkpoint_that_cannot_be_loaded_says_why(module, size, said, checkpoint, tmp_path):
    (tmp_path / "last.ckpt").write_bytes(checkpoint[:size])
    with pytest.raises(InferenceError, match=said):
        load_model(str(tmp_path / "last.ckpt"), module)


def test_devices_have_to_be_there(monkeypatch):
    assert usable_device("cpu") == CPU
    with on_device(CPU):
        pass
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for available, name, said in (
        (True, "abacus", "knows no such device"),
        (True, "mps", "on cpu or cuda"),
        (False, "cuda", "sees no GPU"),
        (True, "cuda:2", "cuda:0 to cuda:1"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        with pytest.raises(InferenceError, match=said):
            usable_device(name)
    assert usable_device("cuda") == torch.device("cuda")
    assert usable_device("cuda:1").index == 1
