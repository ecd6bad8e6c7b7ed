import pytest

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
    with pytest.raises(InferenceError) as error:
        load_model(target, module)
    assert said in str(error.value)


class TestCheckpoint:
    @pytest.fixture
    def saved(self, tmp_path):
        from lightning.pytorch import Trainer

        from lightning_perf.inference.training.distill import Distillation

        module = Distillation(Tiny())
        trainer = Trainer(max_epochs=0, logger=False, enable_checkpointing=False, accelerator="cpu")
        trainer.strategy.connect(module)
        path = tmp_path / "last.ckpt"
        trainer.save_checkpoint(path)
        return path

    def test_without_its_class(self, saved):
        with pytest.raises(InferenceError, match="Add --module"):
            load_model(str(saved), None)

    def test_of_a_class_that_is_no_lightning_module(self, saved):
        with pytest.raises(InferenceError, match="not a LightningModule class"):
            load_model(str(saved), f"{HERE}:Tiny")

    def test_whose_class_cannot_be_made_from_it(self, saved):
        with pytest.raises(InferenceError, match="save_hyperparameters"):
            load_model(str(saved), "lightning_perf.inference.training.distill:Distillation")

    def test_of_another_model(self, saved):
        with pytest.raises(InferenceError, match="this checkpoint does not belong to"):
            load_model(str(saved), "lightning.pytorch.demos.boring_classes:BoringModel")

    def test_damaged(self, saved):
        saved.write_bytes(saved.read_bytes()[:100])
        with pytest.raises(InferenceError, match="damaged or not a checkpoint"):
            load_model(str(saved), "lightning.pytorch.demos.boring_classes:BoringModel")
