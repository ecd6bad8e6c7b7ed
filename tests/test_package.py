"""What `import lightning_perf` gives."""

import subprocess
import sys

import pytest

import lightning_perf
from lightning_perf.lazy_imports import install_command
from tests.support.absent_packages import without

USE = """
import lightning_perf
try:
    lightning_perf.{name}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        ("PerfCallback", "torch", install_command("train")),
        ("PrecisionCallback", "torch", install_command("train")),
        ("measure_variants", "torch", install_command("infer")),
        ("analyze", "msgspec", "No module named 'msgspec'"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(name: str, missing: str, message: str) -> None:
    code = without({missing}, USE.format(name=name))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert message in done.stdout
    assert done.stderr == ""


def test_only_public_names_are_listed() -> None:
    assert dir(lightning_perf) == sorted(lightning_perf.__all__)
    assert "import_module" not in dir(lightning_perf)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PerfCalback'"):
        lightning_perf.PerfCalback  # noqa: B018
