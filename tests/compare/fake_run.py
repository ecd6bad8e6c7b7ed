"""Stands in for a training: leaves a run record with given times, without torch. Run as a script by the tests."""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lightning_perf.run_files.run_record import PLACE_VARIABLE, Outcome, RunRecorder, study_folder
from lightning_perf.run_files.steps import STEPS, StepSample
from lightning_perf.workers.revision import git_revision


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--noise", type=float, default=0.0, help="spread of the step time from run to run, as a share")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--die-once", help="file: the first run to make it kills itself")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--facts-of-git", action="store_true", help="record the revision of the code")
    options = parser.parse_args(arguments)
    folder = Path(study_folder() or "perf")
    folder.mkdir(parents=True)
    seed = int(os.environ["PL_GLOBAL_SEED"])
    rng = random.Random(f"{seed} {options.precision}")
    facts = {
        "train.seed": seed,
        "train.precision": options.precision,
        "train.batch_size": options.batch_size,
        "model.initial_weights": f"weights of {seed}",
        "device.visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }
    if options.facts_of_git:
        facts["code.revision"] = git_revision()
    recorder = RunRecorder(folder, facts, {"threads": os.environ.get("OMP_NUM_THREADS", "not set")})
    print("training", options.precision, "under", os.getppid(), flush=True)
    if options.die_once and not Path(options.die_once).exists():
        Path(options.die_once).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(options.sleep)
    if options.exit:
        sys.exit(options.exit)
    chance = random.Random(f"{seed} {json.loads(os.environ[PLACE_VARIABLE])['arm']}")
    step_ms = options.step_ms * chance.lognormvariate(0, options.noise)
    steps = [StepSample(n, round(step_ms * 1e6 * rng.lognormvariate(0, 0.01)), 0, None, 32, False) for n in range(40)]
    (folder / "steps.rank0.jsonl").write_bytes(b"".join(STEPS.encode(step) for step in steps))
    for epoch in range(3):
        recorder.epoch_ends(epoch, 20 * (epoch + 1), {"val_acc": 0.7 + 0.1 * epoch + rng.gauss(0, 0.002)})
    recorder.ends(Outcome.FINISHED)


if __name__ == "__main__":
    main()
