"""Programs that run as if some packages were not installed."""

from collections.abc import Collection

REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise {error}(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""
COMMAND = """
from lightning_perf.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without(packages: Collection[str], code: str = COMMAND, *, error: type[ImportError] = ModuleNotFoundError) -> str:
    """Return a program that runs `code`, by default `lightning-perf`, and raises where it imports one of the packages.

    A plain `ImportError` also gets through code that expects a package to be absent.
    """
    return REFUSE.format(packages=set(packages), error=error.__name__) + code
