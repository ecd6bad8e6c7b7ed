"""Measure the fingerprint that `PerfCallback` takes before the first step: a ResNet-50, and a folder of 10,000 files.

Run ``python -m benchmarks.training.fingerprint``. It needs 1.1 GB of disk space below the temporary folder.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision

from lightning_perf.callbacks.run_record.run_facts import dataset_files, hash_dataset_files
from lightning_perf.compare.records.fingerprint import hash_tensors

FILES = 10_000
FILE_BYTES = 110_000
"""The mean size of an image of ImageNet."""

ROUNDS = 3


class Folder(torch.utils.data.Dataset[str]):
    """A data set with a list of files, like torchvision's `ImageFolder`."""

    def __init__(self, root: Path, files: int) -> None:
        content = os.urandom(FILE_BYTES)
        self.samples = [(str(root / f"{number:05}.jpg"), 0) for number in range(files)]
        for number, (path, _) in enumerate(self.samples):
            Path(path).write_bytes(number.to_bytes(8, "little") + content)

    def __getitem__(self, index: int) -> str:
        return self.samples[index][0]


def best_s(call: Callable[[], object]) -> float:
    """Return the processor time of the shortest of a few calls, in seconds. Other load does not count."""
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    """Print both times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=FILES)
    files = parser.parse_args().files
    model = torchvision.models.resnet50(weights=None)
    state = dict([*model.named_parameters(), *model.named_buffers()])
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    sys.stdout.write(f"ResNet-50, {size / 1e6:.0f} MB of weights: {best_s(lambda: hash_tensors(state)):.3f} s\n")
    with tempfile.TemporaryDirectory() as folder:
        paths = dataset_files(Folder(Path(folder), files))
        assert paths is not None
        size = files * (FILE_BYTES + 8)
        seconds = best_s(lambda: hash_dataset_files(paths))
        sys.stdout.write(f"{files:,} files, {size / 1e6:,.0f} MB, in the page cache: {seconds:.3f} s\n")


if __name__ == "__main__":
    main()
