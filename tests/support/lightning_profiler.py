"""Recordings of Lightning's own `PyTorchProfiler`, in the layouts of Lightning 1.8 to 2.6.

Its steps end where ``training_step`` returns, inside the closure of the optimizer's step. So each holds the backward
pass and the update of the batch before, and the last update is recorded after the last step. The names of the ranges
are those of the sources of each release (``profilers/pytorch.py``, ``loops/training_epoch_loop.py`` and
``trainer/call.py``).
"""

from tests.support.trace_builder import FETCH, TraceBuilder

STEP, STEPS = 10_000, 4
FORWARD, BACKWARD, UPDATE, TAIL = 1500, 6000, 400, 34_000

LOOPS = {"1.8 to 1.9": "TrainingEpochLoop", "2.0 to 2.6": "_TrainingEpochLoop"}
"""The class that names the fetch: it became private in 2.0."""

MODES = ("automatic", "manual", "modules", "several devices")


def recording(version: str, mode: str, *, tail_us: int = TAIL) -> TraceBuilder:
    """Record `STEPS` steps. The last optimizer's step lasts `tail_us` beyond the last of them."""
    builder = TraceBuilder()
    strategy = "DDPStrategy" if mode == "several devices" else "SingleDeviceStrategy"

    def action(name: str, start_us: int, duration_us: int) -> None:
        builder.annotation(f"[pl][profile]{name}", start_us, duration_us)

    for n, at in enumerate(builder.steps(STEPS, STEP)):
        if n:  # the backward pass and the update of the batch before
            action(f"[Strategy]{strategy}.backward", at + 90, BACKWARD + 20)
            builder.op("autograd::engine::evaluate_function: AddmmBackward0", at + 100, BACKWARD)
            for k in range(20):
                builder.op("aten::addcdiv_", at + 6200 + UPDATE * k // 20, 15)
        action(f"[{LOOPS[version]}].train_dataloader_next", at + 7000, 500)
        builder.annotation(FETCH, at + 7010, 480)
        action(f"[Strategy]{strategy}.batch_to_device", at + 7600, 100)
        last = n == STEPS - 1
        length = tail_us + 2000 if last else 2000 + 6700
        if mode == "manual":  # the update follows the module's own closure: no step is around the forward
            length = tail_us - 6190 if last else 500
            at_step = at + STEP + 6190
        else:
            at_step = at + 8000
            action("run_training_batch", at_step - 60, length + 120)
            action("[LightningModule]Net.optimizer_step", at_step - 30, length + 60)
        builder.annotation("Optimizer.step#Adam.step", at_step, length)
        action(f"[Strategy]{strategy}.training_step", at + 8100, 1800)
        if mode == "modules":
            builder.annotation("[pl][module]torch.nn.modules.linear.Linear: net", at + 8150, FORWARD + 100)
        builder.op("aten::addmm", at + 8200, FORWARD)
    return builder
