import pytest

from lightning_perf.errors import UserError
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.model.source import load_model
from tests.inference.support import Tiny

HERE = "tests.inference.support"


def test_a_class_a_factory_and_their_names():
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


@pytest.fixture
def saved(tmp_path):
    from lightning.pytorch import Trainer

    from lightning_perf.inference.training.distill import Distillation

    trainer = Trainer(max_epochs=0, logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.strategy.connect(Distillation(Tiny()))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    return tmp_path / "last.ckpt"


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (None, "Add --module"),
        (f"{HERE}:Tiny", "not a LightningModule class"),
        ("lightning_perf.inference.training.distill:Distillation", "save_hyperparameters"),
        ("lightning.pytorch.demos.boring_classes:BoringModel", "this checkpoint does not belong to"),
    ],
)
def test_a_checkpoint_that_cannot_be_loaded_says_why(module, said, saved):
    with pytest.raises(InferenceError, match=said):
        load_model(str(saved), module)


def test_a_damaged_checkpoint(saved):
    saved.write_bytes(saved.read_bytes()[:100])
    with pytest.raises(InferenceError, match="damaged or not a checkpoint"):
        load_model(str(saved), "lightning.pytorch.demos.boring_classes:BoringModel")
