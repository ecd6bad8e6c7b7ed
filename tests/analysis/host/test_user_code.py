"""Which Python functions of a recording are the user's own, on Linux, macOS and Windows."""

from __future__ import annotations

import pytest

from lightning_perf.analysis.host.user_code import is_user_function

USERS = (
    "train.py(20): step",
    "src/train.py(20): step",
    "/home/ada/src/train.py(20): step",
    "C:/work/train.py(2): step",
)
LIBRARIES = (
    "torch/nn/modules/module.py(9): forward",
    "/venv/lib/python3.11/site-packages/timm/layers/norm.py(9): forward",
    "/opt/homebrew/lib/python3.12/threading.py(3): run",
    "C:/venv/Lib/site-packages/timm/layers/norm.py(9): forward",
    "C:/Users/ada/AppData/Local/Programs/Python/Python311/Lib/threading.py(3): run",
)


@pytest.mark.parametrize("separator", ["/", "\\"])
@pytest.mark.parametrize(("names", "users"), [(USERS, True), (LIBRARIES, False)], ids=["users", "libraries"])
def test_the_separator_of_paths_does_not_matter(names, users, separator):
    assert [is_user_function(name.replace("/", separator)) for name in names] == [users] * len(names)
