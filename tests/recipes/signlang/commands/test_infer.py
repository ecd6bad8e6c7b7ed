"""`python -m recipes.signlang infer`: from a checkpoint to variants, on the pictures that it never saw."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import Struct, field
from PIL import Image

from recipes.signlang.cli import main
from recipes.signlang.errors import RecipeError

torch = pytest.importorskip("torch")

from lightning_perf.inference.errors import VariantError  # noqa: E402
from lightning_perf.inference.model import Validation  # noqa: E402
from recipes.signlang.inference.distillation import (  # noqa: E402
    StudentOutcome,
    StudyTraining,
    accuracy_of,
    describe_outcomes,
    student_maker,
)
from recipes.signlang.inference.held_out import gather_data  # noqa: E402
from recipes.signlang.training.checkpoint import load_checkpoint, newest_checkpoint  # noqa: E402
from recipes.signlang.training.module import SignModule  # noqa: E402
from tests.support.processes import fork_workers  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

LABELS = ("a", "b", "background")
SIZE = 18


def write_pictures(folder: Path, *, seed: int = 0, labels: tuple[str, ...] = LABELS) -> Path:
    """The original's layout: a label in each file name, ten numbers a capture; bars whose slope tells the label."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for kind, label in enumerate(labels):
        for number in range(30):
            wave = np.sin((rows * (kind == 0) + columns * (kind == 1)) * 1.5)
            picture = 120 + 60 * wave + rng.normal(0, 5, (SIZE, SIZE))
            Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(folder / f"{label}_{number}.png")
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("data") / "signs")


@pytest.fixture(scope="module")
def checkpoint(pictures, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    options = ["--model", "cnn", "--image-size", str(SIZE), "--epochs", "2", "--batch-size", "8", "--workers", "0"]
    run = ["--data", str(pictures), "--log-dir", str(logs), "--accelerator", "cpu", "--data-seed", "3"]
    assert main(["train", *run, *options]) == 0
    yield newest_checkpoint(logs)
    torch.set_num_threads(threads)


def quiet(_: str) -> None:
    pass


def test_a_classifier_gives_what_the_training_module_gives(checkpoint):
    trained = load_checkpoint(checkpoint)
    assert (trained.model, trained.classes, trained.image_size) == ("cnn", LABELS, SIZE)
    module = SignModule.load_from_checkpoint(checkpoint, map_location="cpu").eval()
    pictures = torch.randint(0, 256, (4, 1, SIZE, SIZE), dtype=torch.uint8)
    with torch.no_grad():
        expected = module(pictures)
        torch.testing.assert_close(trained.classifier(pictures.float()), expected)
        torch.testing.assert_close(trained.classifier(pictures), expected)


def test_no_picture_that_trained_is_judged(checkpoint, pictures):
    """Against the files themselves: the split of the training is made again, by whole captures."""
    data = gather_data(load_checkpoint(checkpoint), quiet, limit=25, calibration=40)
    files = {path.name: np.asarray(Image.open(path)) for path in pictures.iterdir()}
    names = {array.tobytes(): name for name, array in files.items()}

    def captures(inputs):
        found = [names[picture.numpy().astype(np.uint8).tobytes()] for picture in inputs[:, 0]]
        assert len(set(found)) == len(found)
        return {(name.split("_")[0], int(Path(name).stem.split("_")[1]) // 10) for name in found}

    judged, trained_on = captures(data.validation.inputs), captures(data.calibration)
    assert not judged & trained_on
    assert len(data.validation.inputs) == 25
    assert len(data.calibration) == 40
    assert data.validation.units == len(judged) == 3
    batches = [batch for batch, _ in data.training.train_dataloader()]
    assert not judged & captures(torch.cat(batches))
    shown = [
        names[picture.numpy().astype(np.uint8).tobytes()].split("_")[0] for picture in data.validation.inputs[:, 0]
    ]
    assert [LABELS[number] for number in data.validation.labels] == shown


def test_labels_are_numbered_as_the_network_numbers_them(checkpoint, tmp_path):
    fewer = write_pictures(tmp_path / "fewer", seed=5, labels=("b", "background"))
    data = gather_data(load_checkpoint(checkpoint), quiet, data=fewer, unseen=True)
    assert sorted(set(data.validation.labels.tolist())) == [1, 2]
    assert any("--unseen" in note for note in data.notes)


def test_other_data_are_refused(checkpoint, pictures, tmp_path):
    trained = load_checkpoint(checkpoint)
    other = write_pictures(tmp_path / "other", seed=9)
    with pytest.raises(RecipeError, match=r"training pictures differ from those of .*--unseen"):
        gather_data(trained, quiet, data=other)
    unknown = write_pictures(tmp_path / "unknown", labels=("a", "c", "d"))
    with pytest.raises(RecipeError, match="pictures of c, d"):
        gather_data(trained, quiet, data=unknown, unseen=True)
    with pytest.raises(RecipeError, match="does not record its training pictures"):
        gather_data(replace(trained, record=None), quiet, data=pictures)
    with pytest.raises(RecipeError, match="--unseen: needs the pictures of --data"):
        gather_data(trained, quiet, unseen=True)
    moved = tmp_path / "moved"
    shutil.copytree(pictures, moved)
    assert len(gather_data(trained, quiet, data=moved).validation.inputs) == 30


def test_bad_checkpoints_are_said(checkpoint, tmp_path, capsys):
    torch.save({"hyper_parameters": {"depth": 3}, "state_dict": {}}, tmp_path / "other.ckpt")
    content = torch.load(checkpoint, weights_only=True)
    content["hyper_parameters"]["model"] = "resnet18"
    torch.save(content, tmp_path / "swapped.ckpt")
    (tmp_path / "damaged.ckpt").write_bytes(checkpoint.read_bytes()[:1000])
    cases = {
        "none.ckpt": "no such checkpoint",
        "other.ckpt": "of another model",
        "swapped.ckpt": "not those of a resnet18",
        "damaged.ckpt": "not a readable checkpoint",
    }
    for name, problem in cases.items():
        assert main(["infer", "--checkpoint", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {tmp_path / name}")
        assert problem in said
        assert "Traceback" not in said
    assert main(["infer", "--log-dir", str(tmp_path / "empty")]) == 2
    assert "no checkpoint" in capsys.readouterr().err
    assert main(["infer", "--checkpoint", str(checkpoint), "--variants", "onnx-runtime"]) == 2
    assert "Did you mean 'onnxruntime'" in capsys.readouterr().err
    assert main(["infer", "--checkpoint", str(checkpoint), "--device", "abacus"]) == 2
    assert "PyTorch knows no such device" in capsys.readouterr().err


def test_accuracy_is_the_share_of_right_answers():
    logits = torch.eye(3).repeat(50, 1)
    labels = torch.arange(150) % 3
    labels[:30] = (labels[:30] + 1) % 3
    assert accuracy_of(torch.nn.Identity(), Validation(logits, labels)) == 0.8


class Tuner(Struct, frozen=True):
    """Stands for `FineTuner`: notes the settings and the teacher of each call, and changes no weight."""

    calls: list[Any] = field(default_factory=list)
    epochs: int = 0
    lr: float = 0.0
    seed: int = 0
    temperature: float = 2.0
    data: Any = None
    diverging: tuple[int, ...] = ()

    def __call__(self, module, teacher):
        if self.seed in self.diverging:
            raise VariantError("its training diverged")
        self.calls.append((self, teacher, next(module.parameters()).detach().clone()))
        return module.eval()

    def choose_temperature(self, module, teacher, held_out):
        self.calls.append((self, teacher, sum(len(labels) for _, labels in held_out)))
        return 4.0


@pytest.fixture
def students(checkpoint):
    """Make the training of students of the checkpoint with a `Tuner`."""
    trained = load_checkpoint(checkpoint)
    data = gather_data(trained, quiet)

    def make(tuner, network="cnn", **options):
        maker = student_maker(network, len(LABELS), SIZE)
        options = {"epochs": 4, "lr": 0.02, "seeds": 2, "on_progress": quiet, **options}
        return StudyTraining(tuner, maker, data.validation, **options), maker, trained.classifier, data

    return make


def test_students_of_a_seed_start_alike_and_the_first_is_kept(students):
    training, make, teacher, _ = students(tuner := Tuner())
    kept = training(make(), teacher)
    training(make(), None)
    assert [(outcome.distilled, outcome.seed) for outcome in training.outcomes] == [
        (True, 0), (True, 1), (False, 0), (False, 1),
    ]  # fmt: skip
    assert [(one.epochs, one.lr, one.seed) for one, *_ in tuner.calls] == [(4, 0.02, seed) for seed in (0, 1, 0, 1)]
    weights = [weight for *_, weight in tuner.calls]
    assert torch.equal(weights[0], weights[2])
    assert torch.equal(weights[1], weights[3])
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(next(kept.parameters()), weights[0])
    training(teacher, None)
    assert tuner.calls[-1][0] == tuner, "what is no student trains with the settings as they are"


def test_a_diverged_first_student_is_the_reason_of_the_row(students):
    training, make, teacher, _ = students(Tuner(diverging=(0,)), "cnn-bn", epochs=1)
    with pytest.raises(VariantError, match="its training diverged"):
        training(make(), teacher)
    assert [outcome.problem for outcome in training.outcomes] == ["its training diverged", None]


def test_the_temperature_is_chosen_once_on_training_pictures_only(students):
    said = []
    training, make, teacher, data = students(tuner := Tuner(), on_progress=said.append)
    training = replace(training, temperature_data=data.temperature_data)
    training(make(), teacher)
    training(make(), None)
    (choosing, _, held_out), *trained = tuner.calls
    assert (choosing.data, held_out) == (data.temperature_data.training, 30)
    assert [one.temperature for one, *_ in trained] == [4.0, 4.0, 2.0, 2.0]
    assert any("temperature 4" in line for line in said)


def test_what_students_came_to():
    def outcomes(**sides):
        return [
            StudentOutcome(name == "distilled", seed, share)
            for name, shares in sides.items()
            for seed, share in enumerate(shares)
        ]

    several = describe_outcomes("cnn", 8, outcomes(distilled=(0.9, 0.8, 0.85), alone=(0.8, 0.8, 0.8)))
    assert "90.0, 80.0, 85.0 % with seeds 0, 1, 2; its row is the one of seed 0" in several[0]
    # Gains of 10, 0 and 5 points: mean 5, standard error 5/sqrt(3), t of 2 degrees 4.3027.
    assert "+5.0 points on average over 3 seeds (95 % interval -7.4 to +17.4)" in several[-1]
    assert "may be chance" in describe_outcomes("cnn", 8, outcomes(distilled=(0.9,), alone=(0.8,)))[-1]
    assert len(describe_outcomes("cnn", 8, outcomes(distilled=(0.9,)))) == 1


def test_students_that_diverged_are_said():
    outcomes = [
        StudentOutcome(True, 0, 0.9, 4.0),
        StudentOutcome(True, 1, None, 4.0, "its training diverged at a learning rate of 0.012: the loss became NaN"),
        StudentOutcome(True, 2, 0.8, 4.0),
        *(StudentOutcome(False, seed, 0.95 + seed / 100) for seed in range(3)),
    ]
    distilled, diverged, alone, gain = describe_outcomes("cnn", 8, outcomes)
    assert "(distilled at temperature 4), 8 epochs: 90.0, 80.0 % with seeds 0, 2" in distilled
    assert "with seed 1: its training diverged at a learning rate of 0.012" in diverged
    assert "95.0, 96.0, 97.0 %" in alone
    assert "over 2 seeds" in gain
    assert "no gain was shown" in gain


def test_the_pictures_that_choose_a_temperature_are_captures_of_the_training(checkpoint):
    data = gather_data(load_checkpoint(checkpoint), quiet)
    part = data.temperature_data.training._split
    whole = data.training._split
    assert sorted([*part.training, *part.held_out]) == whole.training.tolist()
    captures = data.training._images.captures
    assert not set(captures[part.training]) & set(captures[part.held_out])
    pictures = torch.cat([pictures for pictures, _ in data.temperature_data.held_out])
    assert torch.equal(pictures[:, 0], torch.from_numpy(data.training._images.pictures[part.held_out]).float())


def test_the_normalised_cnn_is_a_choice():
    from recipes.signlang.commands.options import MODELS as CHOICES
    from recipes.signlang.training.model import MODELS, SmallCNN

    assert tuple(MODELS) == CHOICES
    network = MODELS["cnn-bn"](3, SIZE)
    assert isinstance(network, SmallCNN)
    assert sum(isinstance(layer, torch.nn.BatchNorm2d) for layer in network) == 4
    assert network(torch.rand(2, 1, SIZE, SIZE)).shape == (2, 3)
    with pytest.raises(ValueError, match="at least 18 pixels, got 17"):
        MODELS["cnn-bn"](3, 17)


@pytest.mark.slow
def test_a_whole_study(checkpoint, tmp_path, capsys, monkeypatch):
    from lightning_perf.inference.results.tradeoff import Tradeoff

    fork_workers(monkeypatch)
    out, plot = tmp_path / "out", tmp_path / "plot.png"
    options = ["--variants", "alone-cnn,tensorrt-fp16", "--batch-sizes", "1", "--seconds", "0.05"]
    student = ["--student", "cnn", "--student-epochs", "1", "--max-accuracy-drop", "0.99", "--plot", str(plot)]
    assert main(["infer", "--checkpoint", str(checkpoint), "--out", str(out), *options, *student]) == 0
    said = capsys.readouterr()
    assert "alone-cnn" in said.out
    assert str(checkpoint) in said.err
    document = Tradeoff.from_json((out / "tradeoff.json").read_bytes())
    assert document.model == "signlang-cnn"
    assert document.validation_inputs == 30
    assert [row.variant for row in document.rows] == ["eager", "alone-cnn+eager", "tensorrt-fp16"]
    assert document.rows[-1].reason is not None
    assert all(row.accuracy.units == 3 for row in document.rows[:2])
    assert any("cnn trained on the labels alone" in note for note in document.notes)
    assert document.recommendation.variant is not None
    assert plot.stat().st_size > 1000
