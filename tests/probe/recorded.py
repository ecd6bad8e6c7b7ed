"""Small trainings, recorded with torch's profiler and read back."""

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from lightning_perf.analysis.model.operators import OperatorCalls, operator_calls
from lightning_perf.probe.replay.messages import CURRENT, Setting, Task
from lightning_perf.probe.run import with_arguments
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from tests.support.operators import Operators

Step = Callable[[], Tensor]


class Residual(nn.Module):
    """Convolutions with batch norm, a sum of two branches, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        x = torch.relu_(self.norm(self.first(images)))
        x = torch.max_pool2d(x + self.second(x), 2)
        logits: Tensor = self.head(x.mean((2, 3)).flatten(1))
        return logits


class Attention(nn.Module):
    """An embedding, a layer of a transformer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, words: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.layer(self.words(words)).mean(1))
        return logits


class Recurrent(nn.Module):
    """A convolution over time with padding by name, a GELU, an LSTM whose state is made in each step, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.states = nn.Conv1d(4, 6, 3, padding="same"), nn.LSTM(6, 8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, series: Tensor) -> Tensor:
        """Logits."""
        filtered = nn.functional.gelu(self.filter(series)).transpose(1, 2)
        logits: Tensor = self.head(self.states(filtered)[0][:, -1])
        return logits


class Tokens(nn.Module):
    """A class token and places that are copied for each sample, as in a vision transformer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Linear(9, 8), nn.Linear(3, 8)
        self.token, self.norm = nn.Parameter(torch.zeros(1, 1, 8)), nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, patches: Tensor) -> Tensor:
        """Logits."""
        n, length, _ = patches.shape
        places = self.places(torch.ones(1, length, 3)).repeat(n, 1, 1)
        x = torch.cat([self.token.expand(n, -1, -1), self.patches(patches) + places], 1)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


class Standardized(nn.Module):
    """A convolution whose weight a batch norm standardizes first, as in normalizer-free networks, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.rand(8, 3, 3, 3)), nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        flat = nn.functional.batch_norm(self.weight.reshape(1, 8, -1), None, None, training=True)
        x = nn.functional.silu(nn.functional.conv2d(images, flat.reshape(self.weight.shape), padding=1))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "convolutions": (Residual, lambda batch: torch.rand(batch, 3, 12, 12)),
    "attention": (Attention, lambda batch: torch.randint(0, 11, (batch, 7))),
    "tokens": (Tokens, lambda batch: torch.rand(batch, 7, 9)),
    "standardized": (Standardized, lambda batch: torch.rand(batch, 3, 12, 12)),
    "recurrent": (Recurrent, lambda batch: torch.rand(batch, 4, 7)),
}


def labels_of(inputs: Tensor) -> Tensor:
    """A class for each sample."""
    return torch.arange(len(inputs)) % 5


def loss_of(network: nn.Module, inputs: Tensor, labels: Tensor, autocast: torch.dtype | None) -> Tensor:
    """The loss of a forward pass."""
    with torch.autocast("cpu", dtype=autocast) if autocast is not None else nullcontext():
        return nn.functional.cross_entropy(network(inputs), labels)


def record(step: Callable[[], None]) -> Trace:
    """Record a step."""
    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rank0.1.pt.trace.json")
        recorder.export_chrome_trace(str(path))
        return read_trace(path)


@cache
def recorded_training(name: str, batch: int = 6, autocast: torch.dtype | None = None) -> Trace:
    """Record a forward and a backward pass and a step of an optimizer of a network."""
    torch.manual_seed(0)
    make, data = NETWORKS[name]
    network, inputs = make(), data(batch)
    labels = labels_of(inputs)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(network, inputs, labels, autocast).backward()
        optimizer.step()

    return record(step)


def calls_of(name: str, batch: int = 6, autocast: torch.dtype | None = None) -> OperatorCalls:
    """The operator calls of a network's step."""
    calls = operator_calls(recorded_training(name, batch, autocast))
    assert calls is not None
    return calls


def task_of(calls: OperatorCalls, **changes: object) -> Task:
    """A task for the calls as recorded, with their arguments."""
    whole = {
        "settings": (Setting(CURRENT),), "device": "cpu", "threads": 1, "batch_size": 6, "seconds": 1.0,
        "memory_bytes": 1 << 28,
    }  # fmt: skip
    return with_arguments(Task(calls=calls, bound=b"", skipped={}, **(whole | changes)))  # type: ignore[arg-type]


class Counted(Operators):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__(lambda name, _: self.operators.update([name]))
        self.operators: Counter[str] = Counter()

    def has_the_work_of(self, name: str) -> bool:
        """Return whether the heavy operators are those of a network's step, as often."""
        torch.manual_seed(0)
        make, data = NETWORKS[name]
        network, inputs = make(), data(6)
        with Counted() as real:
            loss_of(network, inputs, labels_of(inputs), None).backward()
        prefixes = ("convolution", "mm", "addmm", "bmm", "native", "_scaled")
        heavy = [operator for operator in real.operators if operator.startswith(prefixes)]
        return bool(heavy) and all(self.operators[operator] == real.operators[operator] for operator in heavy)
