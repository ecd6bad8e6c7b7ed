"""Reasons of torch 2.11 and 2.15 for a recompilation, and how they are read."""

import pytest

from lightning_perf.analysis.compilation import failed_guard, read_guard

# Printed by torch 2.15 for functions that changed one thing between two calls.
REASONS = [
    ("shape", "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5"),
    ("shape", "0/0: tensor 'x' rank mismatch. expected 2, actual 1"),
    ("shape", "0/1: 2 <= x.size()[0] # return x * 2 # model.py:25 in forward (user code shown is first use of it"),
    ("shape", "0/0: (x.size()[0] % 4) == 0 # if x.shape[0] % 4 == 0: # model.py:27 in forward"),
    ("tensor", "0/0: tensor 'x' dtype mismatch. expected Float, actual Double"),
    ("tensor", "0/0: tensor 'x' stride mismatch at index 0. expected 8, actual 1"),
    ("value", "0/0: s == 'a' # if s == 'a': # model.py:17 in forward"),
    ("value", "0/0: G['SCALE'] == 1 # return x * SCALE # model.py:49 in forward"),
    ("value", "0/0: ___dict_contains('a', d) # if 'a' in d: # model.py:16 in forward (HINT: Dictionary d must contain"),
    ("object", "0/0: ___check_obj_id(fn, 1405), type=<class 'function'> # def f(fn, x): # model.py:45 in f"),
    ("object", "0/0: ___check_type_id(mod, 9490), type=<class 'torch.nn.modules.linear.Linear'> # model.py:42 in g"),
    ("object", "0/0: a is b # lambda a, b: a + b # model.py:47 in <lambda>"),
    ("mode", "0/0: GLOBAL_STATE changed: grad_mode "),
    ("mode", "0/0: GLOBAL_STATE changed: autocast(cpu)_enabled "),
    ("mode", "0/0: fn._modules['1'].training == True # return F.dropout(input, self.p, self.training)"),
    ("mode", "0/0: tensor 'x' requires_grad mismatch. expected requires_grad=1"),
    ("other", "Unable to find recompilation reasons"),
    ("other", ""),
]


@pytest.mark.parametrize(("cause", "reason"), REASONS)
def test_the_cause_of_each_reason(cause: str, reason: str) -> None:
    assert read_guard(reason).cause == cause


def test_the_condition_and_the_line() -> None:
    guard = read_guard(
        "12/3: self.scale == 1    # return x * self.scale # model.py:9 in forward (HINT: torch considers"
    )
    assert (guard.text, guard.code) == ("self.scale == 1", "return x * self.scale")


def test_a_place_in_torch_is_no_line_of_the_program() -> None:
    guard = read_guard("0/2: 8*(x.size()[3] // 2) <= 4096 # (_inductor/codegen/cpp.py:2397 in need_use_acc_helper)")
    assert (guard.cause, guard.text, guard.code) == ("shape", "8*(x.size()[3] // 2) <= 4096", "")


def test_a_shape_says_more_than_a_mode() -> None:
    reasons = [reason for _, reason in REASONS]
    assert failed_guard(reversed_list := reasons[::-1]).cause == "shape"
    assert failed_guard(
        [reason for reason in reversed_list if "size" not in reason and "rank" not in reason]
    ).cause == ("value")
    assert failed_guard([]).text == "not reported"


def test_hostile_reasons_are_read_in_time() -> None:
    for reason in ("(" * 100_000, "tensor '" + "a " * 50_000, "tensor 'x' " + "size " * 50_000, "0/" * 50_000):
        assert read_guard(reason).cause
