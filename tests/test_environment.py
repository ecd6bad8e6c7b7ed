import re
import subprocess

import pytest

from lightning_perf import environment
from lightning_perf.environment import device_facts, flag_facts, git_revision, host_notes, version_facts


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.com", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("lr = 0.1\n")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-qm", "x")
    return tmp_path


def test_a_clean_tree_is_its_commit_and_a_changed_one_says_how_it_was_changed(repository):
    commit = git(repository, "rev-parse", "HEAD")[:12]
    assert git_revision(repository) == commit
    revisions = []
    for text in ("lr = 0.2\n", "lr = 0.3\n", "lr = 0.2\n"):
        (repository / "train.py").write_text(text)
        revisions.append(git_revision(repository))
    assert all(re.fullmatch(rf"{commit}\+[0-9a-f]{{8}}", revision) for revision in revisions)
    assert revisions[0] == revisions[2] != revisions[1]


def test_staged_changes_count_too(repository):
    (repository / "train.py").write_text("lr = 0.2\n")
    unstaged = git_revision(repository)
    git(repository, "add", "train.py")
    assert git_revision(repository) == unstaged


def test_without_a_repository_or_git_there_is_no_revision(tmp_path, monkeypatch, repository):
    outside = tmp_path.parent
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(outside.parent))
    assert git_revision(outside / "nowhere") is None
    monkeypatch.setenv("PATH", "")
    assert git_revision(repository) is None


def test_versions_are_those_that_are_installed(monkeypatch):
    import numpy as np

    facts = version_facts()
    assert facts["version.numpy"] == np.__version__
    monkeypatch.setattr(environment, "PACKAGES", ("no-such-package",))
    assert version_facts()["version.no-such-package"] is None


def test_the_processor_and_its_threads_on_a_cpu():
    torch = pytest.importorskip("torch")
    facts = device_facts(torch.device("cpu"))
    assert facts["device.type"] == "cpu"
    assert facts["device.threads"] == torch.get_num_threads()


def test_tf32_on_and_off_are_different_facts():
    torch = pytest.importorskip("torch")
    seen = {}
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    try:
        for on in (True, False):
            torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = on
            seen[on] = flag_facts()
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before
    differing = {name for name in seen[True] if seen[True][name] != seen[False][name]}
    assert differing == {"flags.tf32_cudnn", "flags.cudnn_benchmark"}
    assert None not in seen[True].values()


def test_the_newer_switch_of_tf32_is_seen_as_well():
    torch = pytest.importorskip("torch")
    before = torch.backends.cuda.matmul.fp32_precision
    seen = set()
    try:
        for precision in ("ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = precision
            seen.add(flag_facts()["flags.tf32_matmul"])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert len(seen) == 2


def test_notes_of_the_host_hold_plain_values():
    assert all(isinstance(value, (str, int, float, type(None))) for value in host_notes().values())
