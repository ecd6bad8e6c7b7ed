"""What `import lightning_perf` gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lightning_perf

WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
import lightning_perf
try:
    lightning_perf.PerfCallback
except ModuleNotFoundError as error:
    print(error, error.name, type(error.__cause__).__name__)
"""


@pytest.mark.parametrize("missing", ["torch", "msgspec"])
def test_a_missing_extra_is_named_and_a_missing_dependency_speaks_for_itself(missing: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing)], capture_output=True, text=True, check=False, timeout=60
    )
    hint = 'PerfCallback needs torch. Run: pip install "lightning-perf[train]"'
    expected = (
        f"{hint} torch ModuleNotFoundError" if missing == "torch" else "No module named 'msgspec' msgspec NoneType"
    )
    assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_only_public_names_are_listed() -> None:
    assert dir(lightning_perf) == sorted(lightning_perf.__all__)
    assert "import_module" not in dir(lightning_perf)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PerfCalback'"):
        lightning_perf.PerfCalback  # noqa: B018
