"""Clones of public repositories with scripts to run, and drawn data in the place of downloads."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CHECKOUTS_VARIABLE = "COMPATIBILITY_CHECKOUTS"
"""Names the folder of the clones in the processes that run the programs."""


class CheckoutError(RuntimeError):
    """A repository is not there, and could not be cloned."""


@dataclass(frozen=True)
class Repository:
    """A public repository.

    Attributes:
        url: Where to clone it from.
        commit: The commit that was tried.
    """

    url: str
    commit: str


CHECKOUTS: Mapping[str, Repository] = {
    "lightning-hydra-template": Repository(
        "https://github.com/ashleve/lightning-hydra-template", "bddbc24b82ab6ccfa6243e815a49dc5bfe8d4144"
    ),
    "pytorch-lightning": Repository(
        "https://github.com/Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414"
    ),
    "litgpt": Repository("https://github.com/Lightning-AI/litgpt", "26857050fe3ff627cd714fe92f5838f51a3d5efa"),
}


def checkout(name: str) -> Path:
    """Return the clone of a repository, and clone it if it is not there.

    Raises:
        CheckoutError: It could not be cloned.
    """
    repository, folder = CHECKOUTS[name], Path(os.environ[CHECKOUTS_VARIABLE]) / name
    if not folder.exists():
        for command in (
            ["git", "clone", "--quiet", "--filter=blob:none", repository.url, str(folder)],
            ["git", "-C", str(folder), "checkout", "--quiet", repository.commit],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["git failed"])[-1]
                raise CheckoutError(f"{repository.url} could not be cloned to {folder}: {reason}")
    return folder


def checkout_commit(name: str) -> str:
    """Return the commit of a clone, in short."""
    command = ["git", "-C", str(checkout(name)), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def write_mnist(folder: Path, *, training: int, test: int) -> None:
    """Draw random digits in the files of MNIST, so that torchvision downloads nothing.

    Args:
        folder: The folder ``MNIST/raw``.
        training: Number of pictures to train with.
        test: Number of pictures to test with.
    """
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, count in (("train", training), ("t10k", test)):
        pictures = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = draw.integers(0, 10, count, dtype=np.uint8)
        for kind, values in (("images-idx3-ubyte", pictures), ("labels-idx1-ubyte", labels)):
            # The format of the files: two zeros, the type 8 (bytes), the number of dimensions, and their sizes.
            head = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
            (folder / f"{name}-{kind}").write_bytes(head + values.tobytes())
