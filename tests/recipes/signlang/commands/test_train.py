"""`python -m recipes.signlang` from its arguments to its exit code."""

import signal

import pytest
from PIL import Image

from recipes.signlang.cli import main

TINY = ("--epochs", "1", "--image-size", "18", "--model", "cnn", "--accelerator", "cpu", "--workers", "0")


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "signlanguage" / "signlanguage"
    folder.mkdir(parents=True)
    for shade, label in enumerate(("a", "b", "background")):
        for number in range(30):
            Image.new("L", (18, 18), 60 * shade + number).save(folder / f"{label}_{number}.png")
    return tmp_path / "signlanguage"


@pytest.fixture
def one_thread():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_whole_training(pictures, tmp_path, capsys):
    logs = tmp_path / "logs"
    assert main(["--data", str(pictures), "--log-dir", str(logs), "--precision", "16-mixed", *TINY]) == 0
    said = capsys.readouterr().out
    assert "runs bf16-mixed instead" in said
    assert "flat: 90 pictures, 3 labels" in said
    assert "by capture (captures are runs of 10 numbers)" in said
    assert "60 pictures train, 30 are held out" in said
    assert "Accuracy on 30 held-out pictures" in said
    assert "synthetic" not in said
    run = logs / "version_0"
    assert (run / "checkpoints" / "last.ckpt").is_file()
    assert len(list((run / "checkpoints").glob("best-*.ckpt"))) == 1
    assert list(run.glob("events.out.tfevents.*"))
    assert (run / "perf" / "report.json").is_file()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_without_tensorboard_the_metrics_are_csv(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("recipes.signlang.training.train.find_spec", lambda _: None)
    logs = tmp_path / "logs"
    assert main(["--data", str(pictures), "--log-dir", str(logs), *TINY]) == 0
    assert "val/accuracy" in (logs / "version_0" / "metrics.csv").read_text()
    assert not list(logs.rglob("events.out.tfevents.*"))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_interrupted_training_goes_on(pictures, tmp_path, capsys, monkeypatch):
    import torch

    from recipes.signlang.training.module import SignModule

    step = SignModule.training_step

    def interrupted(self, batch, batch_idx):
        if self.current_epoch == 1:
            raise KeyboardInterrupt
        return step(self, batch, batch_idx)

    options = ["--data", str(pictures), "--log-dir", str(tmp_path / "logs"), *TINY, "--epochs", "2"]
    before = signal.getsignal(signal.SIGINT)
    try:
        monkeypatch.setattr(SignModule, "training_step", interrupted)
        assert main(options) == 130
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning has it ignored, as it leaves the process
    monkeypatch.setattr(SignModule, "training_step", step)
    checkpoint = capsys.readouterr().out.rpartition("add to the same command: --resume ")[2].strip()
    assert main([*options, "--resume", checkpoint]) == 0
    assert "Accuracy on 30 held-out pictures" in capsys.readouterr().out
    assert [folder.name for folder in (tmp_path / "logs").iterdir()] == ["version_0"]
    last = tmp_path / "logs" / "version_0" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 2  # one batch an epoch
    for wrong, problem in (
        ([], "2 epochs have been trained already. Give more --epochs"),
        (["--seed", "1"], "was not trained on these pictures"),
        (["--image-size", "20"], "is of a cnn on pictures of 18 px"),
    ):
        assert main([*options, "--resume", str(last), *wrong]) == 2
        assert f"error: {last}: {problem}" in capsys.readouterr().err


def test_bad_input_ends_with_code_2_a_path_and_no_traceback(pictures, tmp_path, capsys):
    broken = pictures / "signlanguage" / "b_7.png"
    broken.write_bytes(b"no picture")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.zip").write_bytes(b"no zip")
    cases = {pictures: str(broken), tmp_path / "empty": "no pictures", tmp_path / "file.zip": "nor a readable zip"}
    for path, problem in {**cases, tmp_path / "none": "no such file"}.items():
        assert main(["--data", str(path), "--log-dir", str(tmp_path / "logs"), *TINY]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {path}")
        assert problem in said
        assert "Traceback" not in said
    assert main(["--log-dir", str(tmp_path / "file.zip" / "logs"), *TINY]) == 2
    assert "file.zip/logs: cannot be written (Not a directory). Name another." in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--epochs", "0"], ["--batch-size", "1"], ["--split", "half"], ["--validation-fraction", "1"], ["fit"]],
)
def test_bad_options_end_with_code_2(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("name", "millions"), [("resnet18", 11.2), ("resnet34", 21.3), ("resnet50", 23.6), ("cnn", 1.0)]
)
def test_networks(name, millions):
    import torch

    from recipes.signlang.training.model import build_model

    network = build_model(name, 25, 64)
    assert network.eval()(torch.rand(2, 1, 64, 64)).shape == (2, 25)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.4)
