"""Layouts, captures, decoding and bad input of the sign-language recipe's data."""

import errno
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recipes.signlang.data.decoding import decode_picture
from recipes.signlang.data.image_set import ImageSet, read_image_set
from recipes.signlang.errors import RecipeError


def picture(grey: int = 100, size: tuple[int, int] = (20, 20), mode: str = "L", form: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, grey if mode == "L" else (grey, grey, grey)).save(out, form)
    return out.getvalue()


def lay_out(root: Path, names: list[str], content: bytes | None = None) -> Path:
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content or picture(i % 256, form="JPEG" if "jp" in name.lower() else "PNG"))
    return root


def by_label(images: ImageSet) -> dict[str, int]:
    return {label: int((images.labels == i).sum()) for i, label in enumerate(images.classes)}


FLAT = [f"{label}_{n}.png" for label in ("a", "b", "background") for n in (0, 1, 9, 10, 25)]


@pytest.mark.parametrize("nesting", ["", "signlanguage/", "signlanguage/signlanguage/"])
def test_flat_at_any_nesting(tmp_path, nesting):
    lay_out(tmp_path, [nesting + name for name in FLAT])
    images = read_image_set(tmp_path, 18)
    assert images.layout == "flat"
    assert by_label(images) == {"a": 5, "b": 5, "background": 5}
    # Numbers 0, 1 and 9 are one capture, 10 another, 25 a third, for each of three labels.
    assert len(np.unique(images.captures)) == 9


@pytest.mark.parametrize("nesting", ["", "signlanguage/signlanguage/"])
def test_the_zip_itself(tmp_path, nesting):
    archive = tmp_path / "original.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in FLAT:
            file.writestr(nesting + name, picture())
        file.writestr(nesting + "stats.json", "{}")
        file.writestr("__MACOSX/" + nesting + "._a_0.png", b"fork")
        file.writestr("../../escape_a_0.png", b"climbs out")
    assert by_label(read_image_set(archive, 18)) == {"a": 5, "b": 5, "background": 5}
    assert [p.name for p in tmp_path.iterdir()] == ["original.zip"]


def test_junk_is_ignored(tmp_path):
    lay_out(tmp_path, [*FLAT, "stats.json", "LICENSE", "._a_3.png", ".DS_Store", "__MACOSX/a_4.png"])
    assert len(read_image_set(tmp_path, 18)) == len(FLAT)


def test_upper_case_and_copies(tmp_path):
    lay_out(tmp_path, ["A/282.JPG", "A/282(1).jpg", "A/283 - Copy.JPEG", "A/283.JPEG", "B/1.PNG", "B/2.PNG"])
    (tmp_path / "C").mkdir()
    images = read_image_set(tmp_path, 18)
    assert images.layout == "class folders"
    assert by_label(images) == {"a": 4, "b": 2}
    assert len(np.unique(images.captures)) == 4


def test_class_folders_of_the_originals_names(tmp_path):
    lay_out(tmp_path, [f"{label}/{label}_{n}.png" for label in "ab" for n in (0, 9, 10)])
    assert len(np.unique(read_image_set(tmp_path, 18).captures)) == 4


def test_doubled_folders_count_once(tmp_path):
    names = [f"{label}/{n}.png" for label in "ab" for n in range(3)]
    lay_out(tmp_path / "asl", names)
    lay_out(tmp_path / "asl" / "asl", names)
    for root in (tmp_path, tmp_path / "asl"):
        images = read_image_set(root, 18)
        assert (len(images), images.duplicates) == (6, 6)


def test_pre_split_flat(tmp_path):
    train = [f"train_set/{label}_IMG_{n}.jpg" for label in "AB" for n in range(4)]
    lay_out(tmp_path, [*train, "test_set/A_IMG_1.jpg", "test_set/B_IMG_7.jpg"])
    images = read_image_set(tmp_path, 18)
    assert images.layout == "pre-split flat"
    assert images.held_out is not None
    assert (len(images), int(images.held_out.sum())) == (10, 2)
    assert len(np.unique(images.captures)) == 9  # A_IMG_1 is on both sides


def test_pre_split_class_folders(tmp_path):
    lay_out(tmp_path, [f"set/{side}/{label}/{n}.png" for side in ("Train", "Test") for label in "ABC" for n in (1, 2)])
    images = read_image_set(tmp_path, 18)
    assert images.layout == "pre-split class folders"
    assert images.held_out is not None
    assert by_label(images) == {"a": 4, "b": 4, "c": 4}
    assert int(images.held_out.sum()) == 6


def test_class_folders_beside_a_flat_test_folder(tmp_path):
    lay_out(tmp_path, ["x_train/x_train/A/A1.jpg", "x_train/x_train/nothing/n1.jpg", "x_test/x_test/A_test.jpg"])
    images = read_image_set(tmp_path, 18)
    assert by_label(images) == {"a": 2, "background": 1}


def test_a_train_part_alone_is_not_split(tmp_path):
    lay_out(tmp_path, [f"train/{label}/{n}.png" for label in "AB" for n in (1, 2)])
    assert read_image_set(tmp_path / "train", 18).held_out is None
    assert read_image_set(tmp_path, 18).held_out is None


def table(path: Path, labels: list[int], side: int = 4) -> None:
    rows = [",".join(["label", *(f"pixel{i + 1}" for i in range(side * side))])]
    rows += [",".join(map(str, [label, *([10 * label] * side * side)])) for label in labels]
    path.write_text("\n".join(rows) + "\n")


def test_mnist_tables(tmp_path):
    tmp_path = tmp_path / "data" / "latest test"
    tmp_path.mkdir(parents=True)
    table(tmp_path / "sign_mnist_train.csv", [0, 1, 2, 10, 24])
    table(tmp_path / "sign_mnist_test.csv", [1, 24])
    (tmp_path / "notes.csv").write_text("name,value\n")
    images = read_image_set(tmp_path.parent, 8)
    assert images.classes == ("a", "b", "c", "k", "y")
    assert images.held_out is not None
    names = [images.classes[i] for i in images.labels[images.held_out]]
    assert names == ["b", "y"]
    assert images.pictures.shape == (7, 8, 8)
    assert images.pictures[images.held_out].max(axis=(1, 2)).tolist() == [10, 240]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("label,pixel1,pixel2\n1,2,3\n", "square number"),
        ("label,pixel1\n1,x\n", "whole numbers"),
        ("label,pixel1\n", "no rows"),
        ("label,pixel1\n1,300\n", "0 to 255"),
        ("label,pixel1\n1,3\n99,3\n", "unknown label 99 in data row 2"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_bad_tables(tmp_path, text, problem):
    (tmp_path / "sign_mnist_train.csv").write_text(text)
    with pytest.raises(RecipeError, match=problem) as caught:
        read_image_set(tmp_path, 18)
    assert str(tmp_path / "sign_mnist_train.csv") in str(caught.value)


def test_grey_colour_sixteen_bits_and_sizes_decode_alike():
    sixteen = io.BytesIO()
    Image.fromarray(np.full((30, 40), 100 * 256, np.uint16)).save(sixteen, "PNG")
    for content in (
        picture(100),
        picture(100, mode="RGB"),
        picture(100, mode="RGB", form="JPEG", size=(900, 700)),
        sixteen.getvalue(),
    ):
        decoded = decode_picture(content, 18)
        assert decoded.shape == (18, 18)
        assert np.abs(decoded.astype(int) - 100).max() <= 1


def test_exif_orientation_is_applied():
    pixels = np.zeros((20, 20), np.uint8)
    pixels[:10] = 255  # bright above
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", exif=exif)
    decoded = decode_picture(out.getvalue(), 20)
    assert decoded[:8].mean() < 10 < 245 < decoded[12:].mean()


def test_pictures_whose_white_is_unknown_or_that_are_too_large_are_refused(monkeypatch):
    floats = io.BytesIO()
    Image.fromarray(np.linspace(0, 1, 400, dtype=np.float32).reshape(20, 20)).save(floats, "TIFF")
    with pytest.raises(OSError, match="floating-point"):
        decode_picture(floats.getvalue(), 18)
    monkeypatch.setattr("recipes.signlang.data.decoding.MOST_PIXELS", 399)
    with pytest.raises(OSError, match="more than 399 pixels"):
        decode_picture(picture(100, size=(20, 20)), 18)


def test_unreadable_picture_is_refused_with_its_path(tmp_path):
    lay_out(tmp_path, FLAT)
    (tmp_path / "b_9.png").write_bytes(picture()[:-30])
    (tmp_path / "b_25.png").write_bytes(b"")
    with pytest.raises(RecipeError, match=r"b_25\.png: unreadable picture .* 1 more.*--skip-unreadable"):
        read_image_set(tmp_path, 18)
    with pytest.warns(UserWarning, match=r"left out 2 unreadable pictures, first .*b_25\.png"):
        images = read_image_set(tmp_path, 18, skip_unreadable=True)
    assert (len(images), images.skipped) == (len(FLAT) - 2, 2)
    assert by_label(images) == {"a": 5, "b": 3, "background": 5}


def test_pictures_too_many_for_memory_lie_in_a_file(tmp_path, monkeypatch):
    lay_out(tmp_path, FLAT)
    expected = read_image_set(tmp_path, 18)
    assert not expected.on_disk
    monkeypatch.setattr("recipes.signlang.data.decoding.available_memory_bytes", lambda: 1000)
    images = read_image_set(tmp_path, 18)
    assert images.on_disk
    assert np.array_equal(images.pictures, expected.pictures)


def test_a_disk_that_is_full_is_told_before_it_is_written_to(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    lay_out(tmp_path, FLAT)
    monkeypatch.setattr("recipes.signlang.data.decoding.available_memory_bytes", lambda: 1000)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RecipeError, match=r"no room for .* \(No space left on device\).*set TMPDIR"):
        read_image_set(tmp_path, 18)


def test_damaged_zip_member_is_an_unreadable_picture(tmp_path):
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in FLAT:
            file.writestr(name, picture(77, size=(99, 99)))
    content = bytearray(archive.read_bytes())
    content[content.index(b"b_0.png") + 60] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(RecipeError, match=r"set\.zip:b_0\.png: unreadable picture"):
        read_image_set(archive, 18)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["stats.json"], "no pictures"),
        ([*FLAT, "hello_3.png"], "unknown label"),
        ([*FLAT, "7x.png"], "unknown label"),
        (["A/1.png", "B/1.png", "Examples/1.png"], "unknown label: the folder name 'Examples'"),
        (["a_0.png", "a_10.png"], "one label"),
        (["train/A/1.png", "train/B/1.png", "C/1.png"], "outside of the train and test folders"),
    ],
)
def test_bad_folders(tmp_path, names, problem):
    lay_out(tmp_path, names)
    with pytest.raises(RecipeError, match=problem) as caught:
        read_image_set(tmp_path, 18)
    assert str(tmp_path) in str(caught.value)


def test_wrong_paths(tmp_path):
    with pytest.raises(RecipeError, match="no such file"):
        read_image_set(tmp_path / "nowhere", 18)
    (tmp_path / "not.zip").write_bytes(b"PK but no zip")
    with pytest.raises(RecipeError, match="nor a readable zip"):
        read_image_set(tmp_path / "not.zip", 18)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_listed_is_not_empty(tmp_path):
    lay_out(tmp_path, ["A/1.png", "B/1.png", "C/1.png"])
    (tmp_path / "C").chmod(0)
    try:
        with pytest.raises(RecipeError, match="cannot be listed"):
            read_image_set(tmp_path, 18)
    finally:
        (tmp_path / "C").chmod(0o755)


def test_a_table_of_labels_beside_pictures_is_no_table_of_pictures(tmp_path):
    lay_out(tmp_path, FLAT)
    (tmp_path / "labels.csv").write_text("label,name\na,Alpha\n")
    assert len(read_image_set(tmp_path, 18)) == len(FLAT)
