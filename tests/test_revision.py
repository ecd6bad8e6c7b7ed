import re
import subprocess

import pytest

from lightning_perf.workers.revision import git_revision


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
