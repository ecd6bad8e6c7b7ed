"""`python -m recipes.signlang predict`: pictures to labels."""

import csv
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from recipes.signlang.cli import main
from recipes.signlang.errors import RecipeError
from recipes.signlang.inference.montage import MOST, draw_montage, save_montage, shown_places
from recipes.signlang.inference.prediction import Guess, Prediction, find_pictures

torch = pytest.importorskip("torch")

LABELS = ("a", "b", "background")
SIZE = 18


@pytest.fixture(scope="module")
def classifier():
    from recipes.signlang.training.model import SignClassifier, build_model

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SignClassifier(build_model("cnn", 3, SIZE)).eval()


@pytest.fixture(scope="module")
def checkpoint(classifier, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "best-epoch0.ckpt"
    state = {f"network.{name}": weight for name, weight in classifier.network.state_dict().items()}
    settings = {"model": "cnn", "classes": LABELS, "image_size": SIZE, "lr": 0.01}
    torch.save({"hyper_parameters": settings, "state_dict": state}, path)
    return path


@pytest.fixture(scope="module")
def artefact(classifier, tmp_path_factory):
    from lightning_perf.inference.model import Subject
    from lightning_perf.inference.runtimes.registry import find_runtime
    from lightning_perf.inference.variants.artefact import save_artefact
    from lightning_perf.inference.variants.running import Origin

    folder = tmp_path_factory.mktemp("variants") / "eager"
    folder.mkdir()
    inputs = torch.zeros(1, 1, SIZE, SIZE)
    subject = Subject(classifier, inputs, inputs, torch.device("cpu"), 1)
    find_runtime("eager").build(subject, folder)
    origin = Origin(variant="eager", runtime="eager", transforms=(), source="signlang-cnn", labels=LABELS)
    save_artefact(folder, subject, origin, output_shape=(3,))
    return folder


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ("a_10.png", "a_2.png", "more/b_1.PNG"):
        Image.fromarray(rng.integers(0, 256, (SIZE, SIZE), np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    return folder


def expected(classifier, path):
    grey = torch.from_numpy(np.asarray(Image.open(path)).copy())[None, None].float()
    with torch.no_grad():
        return torch.nn.functional.softmax(classifier.network(grey / 255), dim=1)[0].tolist()


@pytest.mark.parametrize("kind", ["checkpoint", "artefact"])
def test_each_picture_gets_its_label_and_probability(kind, request, pictures, classifier, capsys):
    network = [f"--{kind}", str(request.getfixturevalue(kind))]
    assert main(["predict", str(pictures), *network, "--top", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["labels"] == list(LABELS)
    files = [row["file"] for row in said["pictures"]]
    assert files == [str(pictures / name) for name in ("a_2.png", "a_10.png", "more/b_1.PNG")]
    for row in said["pictures"]:
        wanted = expected(classifier, row["file"])
        given = {guess["label"]: guess["probability"] for guess in row["guesses"]}
        assert [given[label] for label in LABELS] == pytest.approx(wanted, abs=1e-6)
        probabilities = [guess["probability"] for guess in row["guesses"]]
        assert probabilities == sorted(probabilities, reverse=True)


def test_unreadable_files_are_rows_with_the_reason(checkpoint, pictures, capsys):
    (pictures / "broken.png").write_bytes(b"no picture")
    cut = pictures / "cut.png"
    cut.write_bytes((pictures / "a_2.png").read_bytes()[:200])
    named = [str(pictures), str(pictures / "none.png")]
    assert main(["predict", *named, "--checkpoint", str(checkpoint), "--csv"]) == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    reasons = {row["file"]: row["reason"] for row in rows}
    assert reasons[str(pictures / "broken.png")] == "not a picture"
    assert reasons[str(pictures / "none.png")] == "No such file or directory"
    assert reasons[str(cut)]
    assert [row["label"] for row in rows if row["reason"]] == ["", "", ""]
    read = [row for row in rows if not row["reason"]]
    assert len(read) == 3
    assert all(row["label"] in LABELS and row["rank"] == "1" for row in read)
    assert main(["predict", *named, "--checkpoint", str(checkpoint)]) == 1
    table = capsys.readouterr().out
    assert "unreadable: not a picture" in table
    assert "6 pictures" in table
    assert "3 unreadable" in table


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_a_name_that_is_no_unicode_is_no_error(form, checkpoint, tmp_path, monkeypatch):
    picture = os.fsencode(tmp_path) + b"/\xff.png"
    try:
        Path(os.fsdecode(picture)).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes no such name")
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("sys.stdout", out)
    assert main(["predict", str(tmp_path), "--checkpoint", str(checkpoint), form]) == 1
    out.flush()
    assert b"not a picture" in out.buffer.getvalue()


def test_pictures_of_a_zip(pictures, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in pictures.rglob("*.*"):
            archive.write(path, path.relative_to(pictures).as_posix())
    found = find_pictures([tmp_path / "all.zip", pictures / "a_2.png"])
    assert [file.name for file in found] == [
        *(f"{tmp_path / 'all.zip'}:{name}" for name in ("a_2.png", "a_10.png", "more/b_1.PNG")),
        str(pictures / "a_2.png"),
    ]
    assert found[0].read() == found[3].read()
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecipeError, match="no pictures"):
        find_pictures([tmp_path / "empty"])


def test_networks_that_are_none_are_said(artefact, pictures, tmp_path, capsys):
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "module.pt").write_bytes((artefact / "module.pt").read_bytes())
    text = (artefact / "artefact.json").read_text().replace("signlang-cnn", "VisionTransformer")
    (strange / "artefact.json").write_text(text)
    cases = {
        tmp_path / "none": "no exported variant",
        artefact.parent: "Name one of the variants in it: eager",
        strange: "a variant of VisionTransformer",
    }
    for folder, problem in cases.items():
        assert main(["predict", str(pictures), "--artefact", str(folder)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {folder}")
        assert problem in said
    assert main(["predict", str(pictures), "--artefact", str(artefact), "--device", "cuda"]) == 2
    assert "was built for cpu" in capsys.readouterr().err


def test_pictures_go_to_the_device_of_an_artefact_and_what_comes_back_leaves_it(artefact, monkeypatch):
    from recipes.signlang.inference import prediction

    seen = []

    class Logits(torch.Tensor):
        def cpu(self):
            seen.append("cpu")
            return torch.zeros(2, 3)

    def call(inputs):
        seen.append(inputs.device.type)
        return torch.zeros(2, 3).as_subclass(Logits)

    monkeypatch.setattr(prediction, "load_artefact", lambda folder, device, threads: call)
    # No GPU is needed: to a tensor "meta" is a device as another.
    found = prediction.artefact_predictor(artefact, device="meta").probabilities(np.zeros((2, SIZE, SIZE), np.uint8))
    assert seen == ["meta", "cpu"]
    assert found.tolist() == [[pytest.approx(1 / 3)] * 3] * 2


def a_prediction(number, probability=0.95):
    picture = np.full((SIZE, SIZE), number % 256, np.uint8)
    return Prediction(f"/far/a_{number}.png", (Guess("a", probability),), None, picture)


def test_a_montage_shows_what_the_network_saw(tmp_path):
    unreadable = Prediction("/far/broken.png", (), "not a picture", None)
    montage = np.asarray(draw_montage([a_prediction(40), a_prediction(200), unreadable]))
    assert montage.shape == (332, 264, 3)
    assert (montage[8:128, 8:128] == 40).all()
    assert (montage[8:128, 136:256] == 200).all()
    assert (montage[170:290, 8] == (207, 34, 46)).all()  # the border of what could not be read
    save_montage([a_prediction(1)], tmp_path / "new" / "one.png")
    with Image.open(tmp_path / "new" / "one.png") as written:
        assert written.size == (136, 170)
    with pytest.raises(RecipeError, match="cannot be written"):
        save_montage([a_prediction(1)], tmp_path / "one.docx")


def test_a_long_label_leaves_its_probability_whole(monkeypatch):
    written = []
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", lambda _, place, text, **__: written.append(text))
    picture = np.zeros((SIZE, SIZE), np.uint8)
    for label in ("background", 30 * "long"):
        draw_montage([Prediction("/far/手.png", (Guess(label, 1.0),), None, picture)])
    assert written[:3] == ["background", "  100 %", "?.png"]
    assert written[3].endswith("...")
    assert written[4] == "  100 %"


def test_odd_metadata_is_nobodys_warning(checkpoint, tmp_path, capsys):
    image = Image.fromarray(np.arange(SIZE * SIZE, dtype=np.uint32).astype(np.uint8).reshape(SIZE, SIZE)).convert("P")
    image.save(tmp_path / "palette.png", transparency=bytes(range(256)))
    assert main(["predict", str(tmp_path / "palette.png"), "--checkpoint", str(checkpoint)]) == 0
    assert capsys.readouterr().err.count("\n") == 1  # the line that tells the network


def test_a_large_montage_shows_some_of_all():
    montage = np.asarray(draw_montage([a_prediction(number) for number in range(199)]))
    assert MOST == 100
    shown = [int(montage[8 + 60 + line * 162, 8 + 60 + column * 128, 0]) for line in range(10) for column in range(10)]
    assert (shown[0], shown[-1]) == (0, 198)
    assert shown == sorted(shown)
    assert len(set(shown)) == MOST
    assert tuple(shown) == shown_places(199)


def test_only_pictures_that_are_shown_stay_in_memory(checkpoint, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("recipes.signlang.inference.montage.MOST", 2)
    kept = []
    monkeypatch.setattr(
        "recipes.signlang.inference.prediction.print_table", lambda predictions, _: kept.append(predictions)
    )
    run = ["predict", str(pictures), "--checkpoint", str(checkpoint)]
    assert main([*run, "--show", str(tmp_path / "show.png")]) == 0
    assert main(run) == 0
    assert [prediction.picture is not None for prediction in kept[0]] == [True, False, True]
    assert not any(prediction.picture is not None for prediction in kept[1])
