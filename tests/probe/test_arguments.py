import json
from typing import Any

import pytest
import torch

from lightning_perf.analysis.model.operators import OperatorCall
from lightning_perf.probe.replay.arguments import NotCallableError, TensorInfo, bind


def call(name: str, *inputs: tuple[str, Any, Any, str]) -> OperatorCall:
    """A call with inputs as (type, shape, strides, value)."""
    columns = [json.dumps(list(column)) for column in zip(*inputs, strict=True)] if inputs else ["", "", "", ""]
    types, shapes, strides, values = columns
    return OperatorCall(name, types, shapes, strides, values, 1, 1, 0, False)


def tensor(*shape: int, kind: str = "float") -> tuple[str, Any, Any, str]:
    return kind, list(shape), list(torch.empty(shape).stride()), ""


def value(text: str, kind: str = "Scalar") -> tuple[str, Any, Any, str]:
    return kind, [], [], text


NONE: tuple[str, Any, Any, str] = ("", [], [], "")


def test_tensors_and_values() -> None:
    sizes = [value(text, "ScalarList") for text in ("[1, 1]", "[0, 0]", "[1, 1]")]
    bound = bind(call("aten::conv2d", tensor(2, 3, 8, 8), tensor(4, 3, 3, 3), NONE, *sizes, value("1")))
    assert bound.name == "conv2d"
    data = bound.arguments[0]
    assert data == TensorInfo(torch.float32, (2, 3, 8, 8), (192, 64, 8, 1))
    assert (data.elements, data.bytes) == (384, 1536)
    assert bound.arguments[2:] == (None, [1, 1], [0, 0], [1, 1], 1)
    result = bound.call([torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3), *bound.arguments[2:]])
    assert result.shape == (2, 4, 6, 6)


def test_arguments_by_name() -> None:
    bound = bind(call("aten::add_", tensor(3), tensor(3), value("2")))
    assert (bound.in_place, bound.keywords) == (True, ("alpha",))
    assert bound.call([torch.ones(3), torch.ones(3), bound.arguments[2]]).tolist() == [3, 3, 3]


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("0.5", 0.5), ("1e-05", 1e-5), ("2.", 2.0), ("-1", -1)])
def test_numbers(text: str, expected: float) -> None:
    bound = bind(call("aten::mul", tensor(3), value(text)))
    assert bound.arguments[1] == expected
    assert type(bound.arguments[1]) is type(expected)


def test_a_list_of_tensors() -> None:
    lists = ("TensorList", [[2, 3], [2, 3]], [[3, 1], [3, 1]], "")
    bound = bind(call("aten::cat", lists, value("0")))
    assert [part.shape for part in bound.arguments[0]] == [(2, 3), (2, 3)]


def test_texts_are_not_recorded() -> None:
    assert bind(call("aten::gelu", tensor(3), NONE)).arguments[1] == "none"
    sizes = value("[1, 1]", "ScalarList")
    inputs = (tensor(2, 3, 8, 8), tensor(4, 3, 3, 3), NONE, sizes, NONE, sizes, value("1"))
    bound = bind(call("aten::conv2d", *inputs))
    assert (bound.overload, bound.arguments[4]) == ("padding", "same")


def test_flags() -> None:
    assert bind(call("aten::dropout", tensor(3), value("0.1"), value("True"))).arguments[1:] == (0.1, True)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (call("my::op", tensor(3)), "no operator of PyTorch"),
        (call("Node", tensor(3)), "no operator of PyTorch"),
        (call("aten::of_another_version", tensor(3)), "does not have it"),
        (call("aten::relu"), "not recorded"),
        (call("aten::relu", tensor(3), tensor(3)), "no overload"),
        (call("aten::relu", ("c10::Unknown", [3], [1], "")), "no overload"),
        (call("aten::relu", ("float", ["x"], [1], "")), "no overload"),
        (call("aten::relu", ("float", [2**40], [1], "")), "no overload"),
        (call("aten::mul", tensor(3), value("many")), "no overload"),
    ],
)
def test_calls_that_cannot_be_made(broken: OperatorCall, reason: str) -> None:
    with pytest.raises(NotCallableError, match=reason):
        bind(broken)
