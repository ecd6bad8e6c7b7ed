"""A git repository with a training, a branch that makes its steps 10 % slower, and one that does not.

The training calls a function of the checkout and counts its calls, which are its time. So the load of this machine does
not matter.
"""

import subprocess
from pathlib import Path

from tests.support.markdown import ROOT

WORK = """
def step(tick):
    for _ in range({calls}):
        tick()
"""

TRAIN = f"""
import sys
sys.path.append({str(ROOT)!r})
from mypackage.work import step
from tests.compare.fake_run import main

calls = []
step(lambda: calls.append(1))
main([f"--step-ms={{len(calls) / 10}}", "--facts-of-git", *sys.argv[1:]])
"""


def git(*arguments: str) -> str:
    author = ("-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *author, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(branch: str, calls: int, comment: str = "") -> None:
    """Commit a training with steps of so many calls on a new branch."""
    git("checkout", "-q", "-b", branch)
    Path("src/mypackage/work.py").write_text(WORK.format(calls=calls) + comment)
    git("add", ".")
    git("commit", "-q", "-m", branch)


def make_repository(folder: Path) -> None:
    """Make the repository in the current folder: ``main``, and on top of it ``slow`` and ``twin``."""
    (folder / "src" / "mypackage").mkdir(parents=True)
    git("init", "-q", "-b", "start")
    Path("train.py").write_text(TRAIN)
    Path(".gitignore").write_text("perf-gate\n__pycache__\n")
    commit("main", 100)
    commit("slow", 110)
    git("checkout", "-q", "main")
    commit("twin", 100, "# the same work\n")
