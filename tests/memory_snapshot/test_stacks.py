"""The line, module, phase and purpose of an allocation, from its stack."""

from collections.abc import Callable

import pytest

from lightning_perf.memory_snapshot.allocations import EMPTY_SITE, describe_stack
from lightning_perf.memory_snapshot.snapshot import Frame
from tests.memory_snapshot.allocator import ENGINE, MODULE, TORCH

LIGHTNING = "/venv/lib/python3.11/site-packages/lightning"
OPTIMIZER = f"{TORCH}/optim/adam.py"
CLOSURE = (f"{TORCH}/optim/optimizer.py", 490, "wrapper")
CALL = (MODULE, 1700, "_call_impl")
NET = ("/home/ada/project/net.py", 12, "forward")
TRAIN = ("/home/ada/project/train.py", 30, "<module>")
BACKWARD = (f"{TORCH}/_tensor.py", 600, "backward")


def on_linux(path: str) -> str:
    return path


def on_windows(path: str) -> str:
    path = path.replace("/lib/python3.11/site-packages", "/Lib/site-packages").replace(
        "/usr/lib/python3.11", "/Python311/Lib"
    )
    return f"C:{path}".replace("/", "\\") if path.startswith("/") else path


def on_a_share(path: str) -> str:
    return f"\\\\host{on_windows(path)[2:]}" if path.startswith("/") else path


def with_both_separators(path: str) -> str:
    """Return a path as ``os.path.join`` makes it of a folder that was written with slashes."""
    return (
        f"D:{path}".replace("/torch/", "/torch\\").replace("/project/", "/project\\") if path.startswith("/") else path
    )


def on_macos(path: str) -> str:
    return path.replace("/venv/", "/opt/homebrew/Cellar/").replace("/home/", "/Users/")


SYSTEMS = (on_linux, on_windows, on_a_share, with_both_separators, on_macos)


def site(
    *stack: tuple[str, int, str], system: Callable[[str], str] = on_linux
) -> tuple[str, str | None, str, str | None]:
    found = describe_stack([Frame(system(file), line, function) for file, line, function in stack])
    return found.line, found.module, found.phase, found.purpose


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ((NET, CALL, TRAIN), ("project/net.py:12 forward", None, "forward", None)),
        (
            ((f"{TORCH}/nn/modules/linear.py", 125, "forward"), CALL, NET, CALL, TRAIN),
            ("project/net.py:12 forward", "nn.linear", "forward", None),
        ),
        (  # Python 3.11 and newer can name the class
            (("/home/ada/project/net.py", 12, "Block.forward"), CALL, TRAIN),
            ("project/net.py:12 Block.forward", "Block", "forward", None),
        ),
        # A closure runs the forward inside of the optimizer's step.
        ((NET, CALL, CLOSURE, TRAIN), ("project/net.py:12 forward", None, "forward", None)),
        (((OPTIMIZER, 9, "_init_group"), CLOSURE, TRAIN), (
            "project/train.py:30 <module>", None, "optimizer", "optimizer_state",
        )),
        ((("/home/ada/own.py", 3, "step"), CLOSURE, TRAIN), ("ada/own.py:3 step", None, "optimizer", None)),
        # Activation checkpointing runs a forward inside of backward.
        ((NET, CALL, BACKWARD, TRAIN), ("project/net.py:12 forward", None, "backward", None)),
        # A custom function of autograd has its backward in Python.
        (
            (("/home/ada/own.py", 7, "backward"), (f"{TORCH}/autograd/function.py", 288, "apply")),
            ("ada/own.py:7 backward", None, "backward", None),
        ),
        ((BACKWARD, CLOSURE, TRAIN), ("project/train.py:30 <module>", None, "backward", None)),
        (
            (("??", 0, "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)"), ENGINE),
            ("autograd MmBackward0", None, "backward", None),
        ),
        (
            (("??", 0, "at::native::empty_cuda(c10::ArrayRef<long>)"), ("", 0, "at::_ops::sum_dim::call()"), ENGINE),
            ("operator sum_dim", None, "backward", None),
        ),
        (
            ((MODULE, 900, "convert"), (MODULE, 800, "_apply"), (MODULE, 1000, "to"), TRAIN),
            ("project/train.py:30 <module>", None, "other", "parameters"),
        ),
        (
            ((f"{TORCH}/nn/modules/linear.py", 100, "__init__"), ("/home/ada/project/net.py", 3, "__init__"), TRAIN),
            ("project/net.py:3 __init__", None, "other", "parameters"),
        ),
        (
            ((f"{LIGHTNING}/fabric/utilities/apply_func.py", 100, "batch_to"), TRAIN),
            ("project/train.py:30 <module>", None, "other", "inputs"),
        ),
        (
            (("/usr/lib/python3.11/contextlib.py", 9, "inner"), TRAIN),
            ("project/train.py:30 <module>", None, "other", None),
        ),
        (
            (("/tmp/torchinductor_ada/ab/cab.py", 9, "call"), NET, CALL, TRAIN),
            ("project/net.py:12 forward", None, "forward", None),
        ),
        ((("", 0, "main"),), ("(no stack)", None, "other", None)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_stack_is_described(
    stack: tuple[tuple[str, int, str], ...],
    expected: tuple[str, str | None, str, str | None],
    system: Callable[[str], str],
) -> None:
    assert site(*stack, system=system) == expected


def test_an_empty_stack_says_nothing() -> None:
    assert describe_stack(()) == EMPTY_SITE
