"""Where batches come from: memory or files, and pictures moved a little."""

import math
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from lightning_perf.callbacks.run_record.run_facts import dataset_files
from recipes.signlang.data.data_module import MAX_DEGREES, MAX_SHIFT, SignData, augment
from recipes.signlang.data.image_set import ImageSet, read_image_set
from recipes.signlang.data.split import Split, split_images
from recipes.signlang.errors import RecipeError
from recipes.signlang.settings import InputKind, SplitKind

SIZE = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for label in "ab":
        for number in range(40):
            Image.fromarray(rng.integers(0, 256, (SIZE, SIZE), np.uint8)).save(root / f"{label}_{number}.png")
    return root


@pytest.fixture(scope="module")
def archive(folder: Path) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as target:
        for file in sorted(folder.iterdir()):
            target.write(file, f"signlanguage/{file.name}")
    return path


def read(path: Path) -> tuple[ImageSet, Split]:
    images = read_image_set(path, SIZE)
    return images, split_images(images, SplitKind.CAPTURE, 0.25, seed=0)


def all_batches(path: Path, kind: InputKind, workers: int) -> tuple[Tensor, Tensor]:
    images, split = read(path)
    loader = SignData(images, split, 8, workers, input_kind=kind).val_dataloader()
    pictures, labels = zip(*loader, strict=True)
    return torch.cat(pictures), torch.cat(labels)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_files_give_the_same_batches_as_memory(folder: Path, archive: Path, packed: bool, workers: int) -> None:
    path = archive if packed else folder
    pictures, labels = all_batches(path, InputKind.FILES, workers)
    expected_pictures, expected_labels = all_batches(path, InputKind.MEMORY, 0)
    assert pictures.dtype == torch.uint8
    assert len(pictures) == 20
    assert torch.equal(pictures, expected_pictures)
    assert torch.equal(labels, expected_labels)


def test_tables_have_no_files_to_decode(folder: Path) -> None:
    images, split = read(folder)
    with pytest.raises(RecipeError, match="Leave out --input files"):
        SignData(replace(images, names=None), split, 8, 0, input_kind=InputKind.FILES)


def test_the_files_of_each_side_are_known_for_the_fingerprint(folder: Path, archive: Path) -> None:
    images, split = read(folder)
    data = SignData(images, split, 8, 0, input_kind=InputKind.FILES)
    training = dataset_files(data.train_dataloader().dataset)
    held_out = dataset_files(data.val_dataloader().dataset)
    assert training is not None
    assert held_out is not None
    assert sorted([*map(training.path, range(training.count)), *map(held_out.path, range(held_out.count))]) == sorted(
        str(file) for file in folder.iterdir()
    )
    packed, packed_split = read(archive)
    data = SignData(packed, packed_split, 8, 0, input_kind=InputKind.FILES)
    zipped = dataset_files(data.val_dataloader().dataset)
    assert zipped is not None
    assert (zipped.count, zipped.path(0)) == (1, str(archive))


@pytest.mark.parametrize("kind", list(InputKind))
def test_only_training_pictures_are_moved(folder: Path, kind: InputKind) -> None:
    images, split = read(folder)
    data = SignData(images, split, 8, 0, input_kind=kind, moved=True)

    class Training:
        training = True

    pictures = next(iter(data.val_dataloader()))[0]
    assert torch.equal(pictures.squeeze(1), torch.from_numpy(images.pictures[split.held_out[:8]]))
    if kind is InputKind.FILES:
        torch.manual_seed(0)
        drawn = {picture.numpy().tobytes() for picture in next(iter(data.train_dataloader()))[0]}
        assert not drawn & {picture.tobytes() for picture in images.pictures}
        return
    batch = next(iter(data.train_dataloader()))
    trainer: Any = Training()
    data.trainer = trainer
    assert not torch.equal(data.on_after_batch_transfer(batch, 0)[0], batch[0])
    trainer.training = False
    assert torch.equal(data.on_after_batch_transfer(batch, 0)[0], batch[0])


def test_each_picture_of_a_batch_is_moved_by_an_amount_of_its_own() -> None:
    picture = torch.zeros(1, 1, 64, 64, dtype=torch.uint8)
    picture[..., 24:40, 24:40] = 200
    moved = augment(picture.repeat(16, 1, 1, 1), torch.Generator().manual_seed(0))
    assert moved.dtype == torch.uint8
    assert len({one.numpy().tobytes() for one in moved}) == 16
    # Rotated and shifted, not scaled: the bright square keeps its area, and stays near the middle.
    weight = moved.squeeze(1).double()
    area = weight.sum(dim=(1, 2)) / 200
    assert torch.allclose(area, torch.full((16,), 256.0, dtype=torch.float64), rtol=0.02)
    places = torch.arange(64, dtype=torch.float64)
    centre = (weight.sum(dim=1) * places).sum(dim=1) / weight.sum(dim=(1, 2))
    assert ((centre - 31.5).abs() <= 0.05 * 64 + 0.1).all()
    assert (centre - 31.5).abs().max() > 1


@pytest.mark.parametrize("size", [(64, 64), (5, 9), (1, 1)])
def test_pictures_are_moved_as_by_torchs_own_affine_grid(size: tuple[int, int]) -> None:
    pictures = torch.randint(0, 256, (7, 1, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    moved = augment(pictures, torch.Generator().manual_seed(2))
    degrees, *shifts = torch.empty(3, 7).uniform_(-1, 1, generator=torch.Generator().manual_seed(2)).tolist()
    for row, (angle, x, y) in enumerate(zip(degrees, *shifts, strict=True)):
        turn = math.radians(angle * MAX_DEGREES)
        affine = torch.tensor(
            [
                [math.cos(turn), -math.sin(turn), 2 * MAX_SHIFT * x],
                [math.sin(turn), math.cos(turn), 2 * MAX_SHIFT * y],
            ]
        )
        grid = functional.affine_grid(affine[None].double(), [1, 1, *size], align_corners=False)
        exact = functional.grid_sample(
            pictures[row : row + 1].double(), grid, padding_mode="border", align_corners=False
        )
        assert (moved[row].double() - exact[0]).abs().max() <= 0.5 + 0.01
