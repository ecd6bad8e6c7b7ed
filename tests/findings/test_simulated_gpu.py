"""Faults of the recipe's training, replayed on a simulated GPU: named, and the gain of mending them as predicted.

What the replay says of times has nothing to do with the rules: it runs the operators that a `Trainer` ran.
"""

import gzip
import json
from dataclasses import dataclass

import lightning.pytorch as pl
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfCallback
from lightning_perf.analysis.host.launches import step_floor
from lightning_perf.analysis.model.operators import operator_calls
from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.findings.savings import step_ns
from lightning_perf.findings.whole_run import find
from lightning_perf.probe.estimate import estimate_graph
from lightning_perf.probe.replay.messages import GraphTimes
from lightning_perf.run_files.probe import Probe
from recipes.signlang.training.module import SignModule
from tests.findings.recordings import analysis, saving_of
from tests.support.simulated_gpu import Change, Gpu, Node, Replay, steps_of, undisturbed

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),  # Lightning's own call
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`:UserWarning"),
]

STEPS, RECORDED = 6, 12


class Reading(SignModule):
    """The recipe's module, which shows its loss in the progress bar; this one reads it in each step besides."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.latest_loss = loss.item()
        return loss


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Node]:
    """Steps all alike, with the times of the quickest ones of a real fit on one thread."""
    folder = tmp_path_factory.mktemp("fit")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[PerfCallback(skip_first=4, active=RECORDED, repeat=1, dirpath=folder / "perf", report="none")],
        )
        pictures = torch.randint(0, 256, (16 * 20, 1, 32, 32), dtype=torch.uint8)
        data = TensorDataset(pictures, torch.randint(0, 10, (16 * 20,)))
        trainer.fit(Reading("cnn", tuple("0123456789"), 32), DataLoader(data, 16))
    finally:
        torch.set_num_threads(threads)
    (trace,) = (folder / "perf").glob("rank0*.json.gz")
    with gzip.open(trace) as file:
        steps = steps_of(json.load(file))
    assert len(steps) == RECORDED
    usual = undisturbed(steps)
    return [Node({**usual.event, "name": f"ProfilerStep#{number}"}, usual.children) for number in range(STEPS)]


def without(*phases: str) -> Change:
    """The training with no value read in some phases; ``""`` is between phases."""
    return lambda node, phase: not (node.event["name"] == "aten::item" and phase in phases)


WHOLE, READS_IN_MODEL, READS_IN_BAR, NO_READS = without(), without(""), without("forward"), without("", "forward")


@dataclass(frozen=True)
class Fault:
    """A training with a fault, and without it.

    Attributes:
        kind: The finding that has to name it.
        busy: How long the device needs for a step with the fault, as a part of what the host needs.
        before: With the fault.
        after: Without.
        faster: What mending it makes faster.
        action: A part of the advice.
    """

    kind: str
    busy: float
    before: Change
    after: Change
    faster: Gpu
    action: str


HALF = Gpu(products=0.25, others=0.6)
FAULTS = {
    "FP32": Fault("half-precision", 3.0, NO_READS, NO_READS, HALF, 'precision="bf16-mixed"'),
    "FP32, and nearly the host": Fault("half-precision", 1.1, NO_READS, NO_READS, HALF, 'precision="bf16-mixed"'),
    "FP32, and reads": Fault("half-precision", 3.0, WHOLE, WHOLE, HALF, 'precision="bf16-mixed"'),
    "reads in the step": Fault("sync-points", 1.05, READS_IN_MODEL, NO_READS, Gpu(), "instead of loss.item()"),
    "reads for the progress bar": Fault("sync-points", 1.5, READS_IN_BAR, NO_READS, Gpu(), "Log without prog_bar=True"),
    "reads, the host nearly as fast": Fault(
        "sync-points", 1.05, READS_IN_BAR, NO_READS, Gpu(), "Log without prog_bar=True"
    ),
    "tiny kernels": Fault("launch-bound", 0.1, NO_READS, NO_READS, Gpu(host=0.4), "torch.compile"),
}


def a_device_that_needs(part: float, steps: list[Node]) -> float:
    """The speed at which the device needs so much of the host's time for a step."""
    host_us = step_ns(analysis(Replay(Gpu(0, 0), NO_READS).run(steps))) / 1e3
    device = analysis(Replay(Gpu(1, 1), NO_READS).run(steps)).arithmetic
    assert device is not None
    return part * host_us / (device.compute_ns / device.steps / 1e3)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_and_mending_it_saves_what_was_predicted(fault: Fault, recorded: list[Node]) -> None:
    speed = a_device_that_needs(fault.busy, recorded)
    before = analysis(Replay(Gpu(speed, speed), fault.before).run(recorded))
    mended = Gpu(speed * fault.faster.products, speed * fault.faster.others, fault.faster.host)
    after = analysis(Replay(mended, fault.after).run(recorded))
    (found,) = [finding for finding in find([before]) if finding.kind == fault.kind]
    assert fault.action in found.action
    low_ms, high_ms = saving_of(found)
    gain_ms = (step_ns(before) - step_ns(after)) / 1e6
    assert low_ms <= gain_ms <= 1.05 * high_ms
    # What the optimizer's mark lies around is not its own work.
    assert before.optimizer is not None
    assert before.amp_gain is not None
    assert before.optimizer.device_ns < 0.1 * sum(row.time_ns for row in before.amp_gain.parts)


def test_a_read_in_the_model_is_told_as_such(recorded: list[Node]) -> None:
    speed = a_device_that_needs(1.5, recorded)
    found = analysis(Replay(Gpu(speed, speed), WHOLE).run(recorded)).sync_points
    assert found is not None
    assert {(point.operator, point.phase) for point in found.points} == {
        ("aten::item", "forward"),
        ("aten::item", "other"),
    }


@pytest.mark.parametrize("change", [NO_READS, WHOLE], ids=["no reads", "reads"])
@pytest.mark.parametrize("busy", [0.05, 0.1, 0.3, 0.6, 0.8])
def test_the_gain_of_cuda_graphs_is_in_the_probed_range(busy: float, change: Change, recorded: list[Node]) -> None:
    speed = a_device_that_needs(busy, recorded)
    trace = Replay(Gpu(speed, speed), change).run(recorded).build()
    calls, floor = operator_calls(trace), step_floor(trace)
    assert calls is not None
    assert floor is not None
    before = analyze_rank(trace)
    # In a graph, the kernels of this device are as far apart as in a full queue.
    times = GraphTimes(calls.order, (calls.step_ns,) * 3, (calls.step_ns,) * 3, (calls.step_ns,) * 3)
    estimate = estimate_graph(times, calls, floor, step_ns(before), added_ns=0.0)
    probe = Probe("A GPU", 0, (), step_ns(before), calls.step_ns, estimate.measured_ns, 5.0, (estimate,))
    after = analysis(Replay(Gpu(speed, speed, graph=True), change).run(recorded))
    gain_ms = (step_ns(before) - step_ns(after)) / 1e6
    found = [one for one in find([replace(before, probe=probe)]) if one.kind in ("launch-bound", "small-kernels")]
    # If the device works most of the time, waits may be too short to name, above all if the host waits for it too.
    assert found or busy > (0.3 if change is WHOLE else 0.6)
    for finding in found:
        low_ms, high_ms = saving_of(finding)
        if finding.basis == "probed":  # else the general range is narrower
            assert low_ms <= gain_ms <= 1.01 * high_ms
    assert estimate.low_ns <= 1e6 * gain_ms <= 1.01 * estimate.high_ns
