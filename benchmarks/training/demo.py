"""Record the two runs that ``lightning-perf demo`` shows, and put them into the package.

The training is the recipe's small CNN on pictures of 64 pixels, in FP32 on one thread of a CPU. Its dataset waits one
millisecond for each picture, as a network disk might. In the run ``before``, the training process loads the pictures
itself. The run ``after`` follows the first finding of ``before`` and sets ``num_workers=1``. Nothing else differs.

You need a quiet machine with two cores or more. If the machine was busy, the script says so and keeps the old
recordings. Afterwards, run ``make readme``: it quotes the new report in the README and the docs and takes its
picture.

Run as ``python -m benchmarks.training.demo``. It needs no data and takes about 30 seconds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.options import make_parser
from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.savings.planted import PictureData, picture_data
from lightning_perf import PerfCallback, analyze
from lightning_perf.demo import RECORDINGS, RUNS
from recipes.signlang.training.module import SignModule

BATCH_SIZE = 32
IMAGE_SIZE = 64
STEPS = 60
SECONDS_PER_PICTURE = 0.001
WORKERS = {"before": 0, "after": 1}
TRACE = "rank0.pt.trace.json.gz"
OTHER_FILES = ("steps.rank0.jsonl", "windows.rank0.jsonl")
"""The files that a report is made from. The run record is not needed, and it describes the machine in detail."""


class RemotePictures(Dataset[tuple[Tensor, Tensor]]):
    """Pictures that arrive after a wait, as from a network disk. Waiting keeps no core busy."""

    def __init__(self, data: PictureData) -> None:
        self.pictures, self.labels, _ = data

    def __len__(self) -> int:
        return BATCH_SIZE * STEPS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(SECONDS_PER_PICTURE)
        row = index % len(self.pictures)
        return self.pictures[row].unsqueeze(0), self.labels[row]


def fit(run: str, folder: Path) -> None:
    """Train for 60 steps and leave the files of `PerfCallback` in a folder."""
    be_quiet()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = picture_data()
    workers = WORKERS[run]
    loader = DataLoader(RemotePictures(data), BATCH_SIZE, num_workers=workers, persistent_workers=workers > 0)
    callback = PerfCallback(dirpath=folder)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **QUIET_TRAINER)
    trainer.fit(SignModule("cnn", data[2], IMAGE_SIZE), loader)


def main() -> int:
    """Record both runs and replace those of the package.

    Returns:
        The exit code: 1 if the machine was busy.
    """
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=RECORDINGS, help="where to put them (default: %(default)s)")
    parser.add_argument("--fit", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        fit(options.fit[0], Path(options.fit[1]))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        for run in RUNS:
            folder = Path(temporary, run)
            command = [sys.executable, "-m", "benchmarks.training.demo", "--fit", run, str(folder)]
            subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, check=True)
            report = analyze(folder)
            report.print()
            if report.held_back:
                print("The machine was busy: nothing was replaced. Record again when it is quiet.", file=sys.stderr)
                return 1
        for run in RUNS:
            target = options.out / run
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            (trace,) = Path(temporary, run).glob("rank0.*.pt.trace.json.gz")
            shutil.copy(trace, target / TRACE)  # a name without the time, so that a later recording replaces it
            for name in OTHER_FILES:
                shutil.copy(Path(temporary, run, name), target)
    print(sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file()), "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
