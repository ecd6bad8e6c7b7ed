"""The embedded pictures: same bytes every time, in the original's layout, one pose a label."""

import numpy as np
import pytest

from recipes.signlang.data.image_set import read_image_set
from recipes.signlang.data.split import split_images
from recipes.signlang.errors import RecipeError
from recipes.signlang.settings import SplitKind
from recipes.signlang.synthetic.dataset import LABELS, SyntheticSet, default_cache_dir, ensure_synthetic
from recipes.signlang.synthetic.hand import POSES, Anthropometry, build_hand
from recipes.signlang.synthetic.render import render_capture

SMALL = SyntheticSet(seed=3, size=18, captures=2, copies=2)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_letter_has_a_pose_of_its_own():
    assert (*POSES, "background") == LABELS
    joints = [(pose, build_hand(pose, Anthropometry())) for pose in POSES.values()]
    for i, (pose, hand) in enumerate(joints):
        for other_pose, other in joints[:i]:
            moved = np.abs(hand.end - other.end).max()
            assert moved > 0.05 or (pose.turn, pose.roll) != (other_pose.turn, other_pose.roll)


@pytest.mark.parametrize("letter", POSES)
def test_the_thumb_keeps_its_bones(letter):
    hand = build_hand(POSES[letter], Anthropometry())
    # The last four capsules are the thumb's three bones and its ball.
    lengths = np.linalg.norm(hand.end[-4:-1] - hand.start[-4:-1], axis=1)
    assert lengths == pytest.approx([0.215, 0.165, 0.125])


def test_same_generator_state_same_pictures():
    first, again, other = (render_capture("w", np.random.default_rng(seed), 24, 3) for seed in (1, 1, 2))
    assert first.shape == (3, 24, 24)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])


def test_set_is_in_the_originals_layout(tmp_path):
    folder = ensure_synthetic(SMALL, tmp_path, processes=1)
    names = {f"{label}_{n}.png" for label in LABELS for n in range(4)}
    assert {path.name for path in folder.iterdir()} == names
    images = read_image_set(folder, 18, copies=2)
    assert images.classes == LABELS
    assert len(np.unique(images.captures)) == 50
    assert list(tmp_path.iterdir()) == [folder]
    (folder / "a_0.png").write_bytes(b"mark")
    assert ensure_synthetic(SMALL, tmp_path, processes=1) == folder
    assert (folder / "a_0.png").read_bytes() == b"mark", "a cached set is not made again"


def test_bytes_depend_on_neither_run_nor_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("recipes.signlang.synthetic.dataset._WORTH_PROCESSES", 0)
    one = content(ensure_synthetic(SMALL, tmp_path / "one", processes=1))
    two = content(ensure_synthetic(SMALL, tmp_path / "two", processes=2))
    assert one == two
    other = SyntheticSet(seed=4, size=18, captures=2, copies=2)
    assert content(ensure_synthetic(other, tmp_path / "one", processes=1)) != one


def test_of_two_at_once_one_wins_and_both_have_it(tmp_path, monkeypatch):
    from recipes.signlang.synthetic import dataset

    render = dataset.render_capture

    def overtaken(*arguments):
        monkeypatch.setattr(dataset, "render_capture", render)
        ensure_synthetic(SMALL, tmp_path, processes=1)
        return render(*arguments)

    monkeypatch.setattr(dataset, "render_capture", overtaken)
    folder = ensure_synthetic(SMALL, tmp_path, processes=1)
    assert len(content(folder)) == 100
    assert list(tmp_path.iterdir()) == [folder]


def test_an_interrupted_rendering_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("recipes.signlang.synthetic.dataset.render_capture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensure_synthetic(SMALL, tmp_path, processes=1)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_cache(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="--cache-dir"):
        ensure_synthetic(SMALL, tmp_path / "file" / "cache")


def test_cache_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "lightning_perf"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache_dir().is_absolute()


def test_nearest_pixels_do_not_tell_the_letter(tmp_path):
    """Too much varies between captures for pictures to be told apart by their pixels."""
    folder = ensure_synthetic(SyntheticSet(seed=0, size=24, captures=6, copies=2), tmp_path)
    images = read_image_set(folder, 24, copies=2)
    split = split_images(images, SplitKind.CAPTURE, 0.34, 0)
    pixels = images.pictures.reshape(len(images), -1).astype(float)
    pixels -= pixels.mean(axis=1, keepdims=True)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    nearest = split.training[(pixels[split.held_out] @ pixels[split.training].T).argmax(axis=1)]
    accuracy = (images.labels[nearest] == images.labels[split.held_out]).mean()
    assert 0.08 < accuracy < 0.5
