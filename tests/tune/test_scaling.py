"""The time that a step loses on more devices, by cause: its arithmetic, its document, and two real processes."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from lightning.pytorch.strategies import SingleDeviceStrategy
from msgspec.structs import replace
from scipy import stats

from lightning_perf.cli import main
from lightning_perf.trace.description import Processor
from lightning_perf.tune import device_counts
from lightning_perf.tune.device_counts import measure_scaling
from lightning_perf.tune.errors import OutOfTimeError, TrialError, TuneError
from lightning_perf.tune.scaling import CAUSES, SCHEMA_VERSION, Run, ScalingResult, account_for, compare_counts
from lightning_perf.tune.settings import TuneSettings
from lightning_perf.tune.training import Training
from lightning_perf.workers.channel import Failure
from lightning_perf.workers.script import Script
from tests.support.processes import fork_workers
from tests.support.schemas import load_document
from tests.tune.conversation import converse, order
from tests.tune.trainings import TRAINER, Data, Tiny

MS = 1e6


def report(exposed_ms, waits_ms, core_waits_ms, *, step_ms=40, input_ms=(1, 2, 3, 4), host_ms=None):
    """A report of ranks with these exposed collectives, waits in them, and waits for a core, in ms per step."""
    devices = len(exposed_ms)
    rows = [SimpleNamespace(name=name, mean_ns=value * MS) for name, value in (host_ms or {}).items()]
    breakdown = SimpleNamespace(averaged_steps=10, has_device=host_ms is not None, categories=rows)
    ranks = [
        SimpleNamespace(
            rank=rank,
            breakdown=breakdown,
            workload=SimpleNamespace(devices=("a GPU",)),
            metadata=SimpleNamespace(
                processor=Processor("a CPU", threads=1, core_wait=None if core_ms is None else core_ms / step_ms)
            ),
            communication=None if each is None else SimpleNamespace(exposed_ns=0, host_exposed_ns=10 * each * MS),
        )
        for rank, (each, core_ms) in enumerate(zip(exposed_ms, core_waits_ms, strict=True))
    ]
    shares = [
        SimpleNamespace(rank=rank, wait_ns=None if each is None else each * MS) for rank, each in enumerate(waits_ms)
    ]
    in_fit = [SimpleNamespace(rank=rank, input_ns=input_ms[rank] * MS) for rank in range(devices)]
    return SimpleNamespace(
        ranks=ranks,
        distributed=SimpleNamespace(ranks=shares) if devices > 1 else None,
        over_fit=SimpleNamespace(step_ns=step_ms * MS, ranks=in_fit) if devices > 1 else None,
        step_times=SimpleNamespace(
            mean_ns=step_ms * MS, device_mean_ns=None, data_wait_mean_ns=input_ms[0] * MS, samples_per_second=100.0
        ),
    )


def parts_ms(found):
    return [found.parts_ns[name] / MS if name in found.parts_ns else None for name in CAUSES[:-1]]


@pytest.mark.parametrize(
    ("exposed", "waits", "core_waits", "expected"),
    [
        # One process waits for nobody.
        ([None], [None], [0], [1, 0, 0, 0, None]),
        # Rank 1 is 30 ms late, and the transfer takes 2 ms: rank 0 sees both.
        ([32, 2], [30, 0], [0, 0], [1, 2, 30, 0, None]),
        # Rank 0 is late, so the account is that of rank 1.
        ([2, 32], [0, 30], [0, 0], [2, 2, 30, 0, None]),
        # A transfer of 20 ms for both, and nobody is late.
        ([20, 20], [0, 0], [0, 0], [2, 20, 0, 0, None]),
        # Each rank is late in half of the steps.
        ([17, 17], [15, 15], [0, 0], [2, 2, 15, 0, None]),
        # One of four is late: the others wait, and the median is one of them.
        ([32, 32, 2, 32], [30, 30, 0, 30], [0] * 4, [2, 2, 30, 0, None]),
        # Waits of calls that overlap each other are longer than the exposed time.
        ([40, 5], [55, 4], [0, 0], [1, 1, 39, 0, None]),
        # The peers had no core for 6 ms: so much of the waits is not communication, whatever else they are.
        ([20, 20], [0, 0], [1, 6], [2, 14, 0, 12, None]),
        ([32, 2], [30, 0], [1, 6], [1, 0, 26, 7, None]),
        ([3, 3], [0, 0], [50, 40], [2, 0, 0, 43, None]),
        # Not recorded is unknown, and not 0.
        ([None, None], [None, None], [0, 0], [1, None, None, 0, None]),
        ([32, 2], [None, None], [0, 0], [1, None, None, 0, None]),
        ([32, 2], [30, 0], [None, 6], [1, 2, 30, None, None]),
    ],
)
def test_a_step_is_divided_as_the_waiting_rank_sees_it(exposed, waits, core_waits, expected):
    found = account_for(report(exposed, waits, core_waits), len(exposed))
    assert parts_ms(found) == [None if each is None else pytest.approx(each) for each in expected]
    assert found.samples_per_s == 100.0 * len(exposed)
    assert (found.device, found.device_name, found.threads) == ("cpu", "a CPU", 1)


def test_on_a_device_the_host_has_a_part_and_a_wait_for_a_core_takes_nothing():
    host = {"device_compute": 20, "kernel_launch": 3, "runtime": 1, "host_compute": 2, "host_other": 4, "memcpy": 5}
    found = account_for(report([32, 2], [30, 0], [9, 9], host_ms=host), 2)
    assert parts_ms(found) == [1, pytest.approx(2), pytest.approx(30), None, pytest.approx(10)]
    assert found.core_wait_ns == 9 * MS
    assert (found.device, found.device_name) == ("gpu", "a GPU")


def test_without_step_times_of_all_ranks_there_is_no_account():
    made = report([32, 2], [30, 0], [0, 0])
    made.over_fit = None
    with pytest.raises(TrialError, match="were not timed"):
        account_for(made, 2)


def runs(rng, blocks, scale, unknown=()):
    return [
        Run(
            float(scale * rng.uniform(20, 30)) * MS,
            {name: float(rng.uniform(0, 10)) * MS for name in CAUSES[:-1] if name not in unknown},
            float(rng.uniform(100, 200)),
            1,
            2 * MS,
        )
        for _ in range(blocks)
    ]


def in_blocks(made):
    return [dict(zip(made, block, strict=True)) for block in zip(*made.values(), strict=True)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("unknown", [(), ("host",), ("host", "communication", "imbalance")])
def test_the_causes_sum_to_the_lost_time(seed, unknown):
    rng = np.random.default_rng(seed)
    blocks = int(rng.integers(2, 9))
    made = {devices: runs(rng, blocks, scale, unknown) for devices, scale in ((4, 3), (1, 1), (2, 2))}
    base, *others = compare_counts(in_blocks(made))
    assert (base.devices, base.causes, base.lost_ms.value, base.efficiency.value) == (1, (), 0, 1)
    for count in others:
        steps, before = ([run.step_ns / MS for run in made[devices]] for devices in (count.devices, 1))
        lost = np.subtract(steps, before)
        assert count.lost_ms.value == pytest.approx(lost.mean())
        assert (count.lost_ms.low, count.lost_ms.high) == pytest.approx(
            stats.t.interval(0.95, blocks - 1, lost.mean(), stats.sem(lost))
        )
        assert count.efficiency.value == pytest.approx(np.mean(before) / np.mean(steps))
        assert [cause.name for cause in count.causes if cause.lost_ms is None] == [
            name for name in CAUSES if name in unknown
        ]
        known = {cause.name: cause.lost_ms.value for cause in count.causes if cause.lost_ms is not None}
        assert sum(known.values()) == pytest.approx(count.lost_ms.value)
        for name in known.keys() - {"rest"}:
            differences = [
                (ours.parts_ns[name] - theirs.parts_ns[name]) / MS
                for ours, theirs in zip(made[count.devices], made[1], strict=True)
            ]
            assert known[name] == pytest.approx(np.mean(differences))


def test_a_cause_that_one_block_lacks_is_in_the_rest():
    rng = np.random.default_rng(0)
    made = {1: runs(rng, 3, 1), 2: [*runs(rng, 2, 2), *runs(rng, 1, 2, ("communication",))]}
    causes = {cause.name: cause.lost_ms for cause in compare_counts(in_blocks(made))[1].causes}
    assert causes["communication"] is None
    assert causes["rest"].n == 3


def result():
    rng = np.random.default_rng(0)
    counts = compare_counts(in_blocks({devices: runs(rng, 6, devices, ("host",)) for devices in (1, 2, 4)}))
    return scaling_result(counts)


def scaling_result(counts, *, interrupted=False):
    words = "lightning-perf tune …", "abc", interrupted
    return ScalingResult(SCHEMA_VERSION, "0", "cpu", "a [CPU]", 2, counts, 90.0, {}, *words)


def test_the_document_is_shown_and_read_back(capsys, monkeypatch, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    made = result()
    assert ScalingResult.from_json(made.to_json()) == made
    monkeypatch.setattr(device_counts, "measure_scaling", lambda *_: made)
    assert main(["tune", "--devices", "1,2,4", "-q", "--json", "-o", str(tmp_path / "out"), str(script)]) == 0
    assert load_document("tune", capsys.readouterr().out)["counts"][2]["devices"] == 4
    assert ScalingResult.load(tmp_path / "out" / "scaling.json") == made
    assert main(["tune", "--devices", "1,2,4", "-q", str(script)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"launches and host work +not recorded +not recorded", text)
    assert "share 2 logical processors, so" in " ".join(text.split())


def test_blocks_that_differ_too_much_prove_no_efficiency(capsys):
    made = [Run(step_ms * MS, {}, None, 1, None) for step_ms in (24, 165, 30, 39, 47, 43)]
    scaling_result(compare_counts(in_blocks({1: made[:3], 2: made[3:]}))).print(width=80)
    assert "The efficiency of 2 devices is not certain" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "2"], "needs at least two different numbers"),
        (["--devices", "2,2"], "needs at least two different numbers"),
        (["--devices", "0,2"], "not a whole number of 1 or more"),
        (["--devices", "1,2", "--gate", "0.1"], "Leave out --gate"),
        (["--devices", "1,2", "--levers", "compile"], "Leave out --levers"),
    ],
)
def test_wrong_options_are_refused(words, said, capsys, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    try:
        code = main(["tune", *words, str(script)])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert said in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("ddp_spawn", "starts its own processes: set strategy='ddp'"),
        (SingleDeviceStrategy("cpu"), "has 1: leave strategy= out"),
    ],
)
def test_a_strategy_that_cannot_use_the_devices_is_an_error(strategy, said, tmp_path):
    made = order(Training(Tiny(), Data(), {**TRAINER, "strategy": strategy}), tmp_path)
    (answer,) = converse(replace(made, devices=2, timed_steps=40))
    assert isinstance(answer, Failure)
    assert said in answer.reason


TRAIN = """
import time
import lightning.pytorch as pl
import torch

class Late(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        if self.global_rank == 1:
            time.sleep(0.03)
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=4)

pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, logger=False).fit(Late())
"""


@pytest.mark.slow
def test_two_processes_train_an_unchanged_script(tmp_path, monkeypatch):
    fork_workers(monkeypatch)
    monkeypatch.setattr(device_counts, "USUAL_BLOCKS", 3)
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    lines = []
    found = measure_scaling(Script((str(script),)), [2, 1], TuneSettings(minutes=10, window_s=0.01), lines.append)
    one, two = found.counts
    assert (found.device, one.devices, two.devices, two.step_ms.n) == ("cpu", 1, 2, 3)
    known = {cause.name: cause.lost_ms.value for cause in two.causes if cause.lost_ms is not None}
    assert known.keys() >= {"input", "communication", "imbalance", "rest"}
    assert sum(known.values()) == pytest.approx(two.lost_ms.value)
    assert two.step_ms.value > 30  # rank 1 sleeps for so long
    assert sum("a step takes" in line for line in lines) == 5


def test_the_rank_that_fails_is_named(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("time.sleep(0.03)", "1 / 0"))
    with pytest.raises(TuneError, match=r"^the training fails on 2 devices, in rank 1: ZeroDivisionError: division by"):
        measure_scaling(Script((str(script),)), [2, 1], TuneSettings(minutes=10), lambda _: None)


@pytest.fixture
def planned(monkeypatch):
    """A function that measures 1 and 2 devices, whose trainings raise this error after so many of them."""

    def measure(trainings, error):
        left = iter(range(trainings))

        def train(_, devices, __):
            if next(left, None) is None:
                raise error
            return Run(10 * devices * MS, {}, None, 1, None)

        monkeypatch.setattr(device_counts._Scaling, "_train", train)
        lines = []
        return measure_scaling("any:thing", [1, 2], TuneSettings(minutes=10), lines.append), lines

    return measure


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OutOfTimeError("more")])
def test_complete_blocks_are_kept(error, planned):
    found, lines = planned(2 + 2 * 4 + 1, error)
    assert found.counts[1].step_ms.n == 4
    assert found.interrupted == isinstance(error, KeyboardInterrupt)
    assert lines[-1].startswith("Interrupted: the result has 4" if found.interrupted else "block 4 of 6: ")


def test_two_blocks_are_no_result(planned):
    with pytest.raises(TuneError, match="--minutes 10 is too little for 3 blocks: give more"):
        planned(2 + 2 * 2, OutOfTimeError("more"))
    with pytest.raises(KeyboardInterrupt):
        planned(2 + 2 * 2, KeyboardInterrupt())


def test_an_interrupted_result_is_shown_and_ends_as_interrupted(capsys, monkeypatch, tmp_path):
    (tmp_path / "train.py").touch()
    made = replace(result(), interrupted=True)
    monkeypatch.setattr(device_counts, "measure_scaling", lambda *_: made)
    assert main(["tune", "--devices", "1,2,4", "-q", str(tmp_path / "train.py")]) == 130
    assert "Lost time per step" in capsys.readouterr().out


def test_too_little_time_is_an_error(tmp_path, monkeypatch):
    fork_workers(monkeypatch)
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with pytest.raises(TuneError, match=r"--minutes 0\.02 is too little for 3 blocks: give "):
        measure_scaling(Script((str(script),)), [2, 1], TuneSettings(minutes=0.02), lambda _: None)
