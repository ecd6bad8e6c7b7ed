"""The GitHub Action, ``action.yml``: its steps run one by one, as a runner would, against a stand-in for GitHub.

The expressions in it are few, and each is evaluated here as GitHub documents it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_perf.cli import main
from tests.compare.planted_slowdown import git, make_repository
from tests.support.markdown import DOCS, ROOT, blocks

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
BASE = "${{ github.event_name == 'pull_request' && format('{0}^1', github.sha) || github.event.before }}"
ISSUES = re.compile(r"/repos/me/mine/issues/(?:7/comments(?:\?per_page=100&page=(?P<page>\d+))?|comments/(?P<id>\d+))")


class GitHub(ThreadingHTTPServer):
    """Stands in for GitHub's REST API: the comments of one pull request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.comments: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.refusal: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: GitHub

    def do_GET(self) -> None:
        page = int(self._path()["page"] or 1)
        self._answer(200, self.server.comments[100 * (page - 1) : 100 * page])

    def do_POST(self) -> None:
        self._path()
        body = self._body()
        if self.server.refusal is None:
            number = len(self.server.comments) + 1
            self.server.comments.append({"id": number, "body": body, "html_url": f"https://github.test/{number}"})
        self._answer(self.server.refusal or 201, self.server.comments[-1:][0] if self.server.comments else {})

    def do_PATCH(self) -> None:
        number = int(self._path()["id"])
        (comment,) = [comment for comment in self.server.comments if comment["id"] == number]
        comment["body"] = self._body()
        self._answer(200, comment)

    def log_message(self, *_: object) -> None:
        pass

    def _path(self) -> re.Match[str]:
        match = ISSUES.fullmatch(self.path)
        assert match is not None, self.path
        assert self.headers["Authorization"] == "Bearer secret"
        self.server.requests.append(self.command)
        return match

    def _body(self) -> str:
        return str(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"])

    def _answer(self, code: int, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def github() -> Iterator[GitHub]:
    server = GitHub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Runner:
    """Runs the steps of the action in a shallow clone, as the runner of a pull request does."""

    def __init__(self, folder: Path, github: GitHub, branch: str, **inputs: str) -> None:
        # GitHub tests the merge of the pull request into its base.
        git("checkout", "-q", "-B", "merge", "main")
        git("merge", "-q", "--no-ff", "-m", "merge", branch)
        self.sha = git("rev-parse", "merge")
        self.folder = folder / branch
        self.checkout = self.folder / "checkout"
        origin = f"file://{Path.cwd()}"
        git("clone", "-q", "--depth=1", "--branch=merge", origin, str(self.checkout))
        git("-C", str(self.checkout), "checkout", "-q", "--detach")
        git("config", "uploadpack.allowAnySHA1InWant", "true")  # as GitHub does
        for name in ("bin", "temp"):
            (self.folder / name).mkdir()
        self.inputs = {name: str(entry.get("default", "")) for name, entry in ACTION["inputs"].items()}
        assert self.inputs["base"] == BASE
        assert self.inputs["head"] == "${{ github.sha }}"
        self.inputs |= {"base": f"{self.sha}^1", "head": self.sha, "token": "secret", **inputs}
        self.outputs: dict[str, str] = {}
        self.log = ""
        self._script(
            "python", f'case "$*" in "-m pip"*) echo "$@" > {self.folder}/pip ;; *) exec {sys.executable} "$@" ;; esac'
        )
        self._script("lightning-perf", f'exec {sys.executable} -m lightning_perf "$@"')
        (self.folder / "event.json").write_text(json.dumps({"pull_request": {"number": 7}}))
        self.environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TMPDIR": str(self.folder / "temp"),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_API_URL": github.url,
            "GITHUB_REPOSITORY": "me/mine",
            "GITHUB_EVENT_PATH": str(self.folder / "event.json"),
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
        }

    def run(self) -> int:
        """Run all steps, and return the exit code of the last one."""
        code = 0
        for step in ACTION["runs"]["steps"]:
            assert code == 0, self.log  # the runner stops at the first step that fails
            if "uses" in step:
                assert step["uses"] == "actions/upload-artifact@v4"
                assert {file.name for file in Path(self.value(step["with"]["path"])).iterdir()} == {
                    "gate.html",
                    "gate.md",
                }
                self.outputs["steps.upload.outputs.artifact-url"] = "https://github.test/artifact"
            else:
                code = self.step(step["name"])
        return code

    def step(self, name: str) -> int:
        """Run one step, and return its exit code."""
        (step,) = [step for step in ACTION["runs"]["steps"] if step["name"] == name]
        if "if" in step:
            condition = re.fullmatch(r"inputs\.(\w+) == 'true'", step["if"])
            assert condition is not None
            if self.inputs[condition[1]] != "true":
                return 0
        script = self.folder / "step.sh"
        script.write_text(step["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.checkout / self.value(step.get("working-directory", ".")),
            env=self.environment | {key: self.value(value) for key, value in step.get("env", {}).items()},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.log = done.stdout + done.stderr
        if "id" in step:
            for line in (self.folder / "output").read_text().splitlines():
                key, _, value = line.partition("=")
                self.outputs[f"steps.{step['id']}.outputs.{key}"] = value
        return done.returncode

    def value(self, text: str) -> str:
        """Replace the expressions of a value."""
        known = {f"inputs.{name}": value for name, value in self.inputs.items()}
        known |= {"runner.temp": str(self.folder / "temp"), **self.outputs}
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: known[match[1]], text)

    def _script(self, name: str, line: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    make_repository(folder)
    return folder


def test_a_slowdown_fails_and_its_repair_updates_the_comment(repository: Path, tmp_path: Path, github: GitHub) -> None:
    github.comments += [{"id": n, "body": "Nice work."} for n in range(1, 103)]
    options = {"options": "--blocks 3\n--devices cpu\n", "command": "python train.py --noise 0.002"}
    slow = Runner(tmp_path, github, "slow", **options)
    assert slow.run() == 1, slow.log
    assert (slow.folder / "pip").read_text() == f"-m pip install {ROOT}[compare]\n"
    summary = (slow.folder / "summary.md").read_text()
    assert "**Failed: 1 of 1 gate failed.**" in summary
    assert slow.sha[:12] in summary
    assert len(github.comments) == 103
    body = github.comments[-1]["body"]
    assert body.startswith("<!-- lightning-perf comment: gate -->\n# Comparison with base: head slower\n")
    assert body.endswith("\n\n[Full report](https://github.test/artifact)\n")
    assert github.requests == ["GET", "GET", "POST"]

    twin = Runner(tmp_path, github, "twin", **options)
    assert twin.run() == 0, twin.log
    assert len(github.comments) == 103
    assert "**Passed: the gate passed.**" in github.comments[-1]["body"]
    assert github.requests[3:] == ["GET", "GET", "PATCH"]


def test_a_command_that_fails_replaces_the_earlier_result(repository: Path, tmp_path: Path, github: GitHub) -> None:
    github.comments.append({"id": 1, "body": "<!-- lightning-perf comment: gate -->\nPassed"})
    runner = Runner(tmp_path, github, "twin", setup="exit 3", command="python train.py")
    assert runner.step("Fetch both commits") == 0
    assert runner.step("Run base and head") == 0
    assert runner.outputs["steps.measure.outputs.exit-code"] == "2"
    runner.outputs["steps.upload.outputs.artifact-url"] = ""
    assert runner.step("Update the comment") == 0
    assert "# No result" in github.comments[0]["body"]
    assert runner.step("Apply the gate") == 2


def test_a_fork_gets_the_summary_only(repository: Path, tmp_path: Path, github: GitHub) -> None:
    runner = Runner(tmp_path, github, "twin", command="python train.py", options="--no-such-option")
    github.refusal = 403
    for name in ("Fetch both commits", "Run base and head"):
        assert runner.step(name) == 0
    assert "exit code 2" in (runner.folder / "summary.md").read_text()  # argparse wrote no Markdown
    runner.outputs["steps.upload.outputs.artifact-url"] = ""
    assert runner.step("Update the comment") == 0
    assert "no comment: the token may not comment on me/mine#7 (403 Forbidden)" in runner.log
    assert "::warning" not in runner.log
    github.refusal = 500
    assert runner.step("Update the comment") == 0
    assert "GitHub refused the comment (500 Internal Server Error)" in runner.log
    assert "::warning title=lightning-perf::The comment could not be written." in runner.log
    assert github.comments == []


@pytest.mark.parametrize(("allowed", "expected"), [("false", 4), ("true", 0)])
def test_an_inconclusive_gate_may_pass(
    repository: Path, tmp_path: Path, github: GitHub, allowed: str, expected: int
) -> None:
    runner = Runner(tmp_path, github, "twin", **{"allow-inconclusive": allowed})
    runner.outputs["steps.measure.outputs.exit-code"] = "4"
    assert runner.step("Apply the gate") == expected


@pytest.fixture
def on_github(github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a workflow, and a file to comment."""
    (tmp_path / "event.json").write_text('{"pull_request": {"number": 7}}')
    values = {"API_URL": github.url, "TOKEN": "secret", "REPOSITORY": "me/mine", "EVENT_PATH": f"{tmp_path}/event.json"}
    for name, value in values.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    file = tmp_path / "report.md"
    file.write_text("# Fine\n")
    return file


def test_each_key_has_a_comment_of_its_own(on_github: Path, github: GitHub) -> None:
    for key in ("cpu", "gpu", "cpu"):
        assert main(["gate", "--comment", str(on_github), f"--key={key}"]) == 0
    assert [comment["body"].splitlines()[0] for comment in github.comments] == [
        "<!-- lightning-perf comment: cpu -->",
        "<!-- lightning-perf comment: gpu -->",
    ]


def test_a_long_report_is_cut_for_the_comment(on_github: Path, github: GitHub) -> None:
    on_github.write_text("# Fine\n\n<details><summary>Runs</summary>\n\n" + "- a run\n" * 20_000 + "</details>\n")
    assert main(["gate", "--comment", str(on_github), "--link=https://x.test"]) == 0
    body = github.comments[0]["body"]
    assert len(body) < 65_536
    assert body.endswith(
        "- a run\n</details>\n\nThe rest is too long for a comment.\n\n[Full report](https://x.test)\n"
    )


def test_other_events_have_no_comment(on_github: Path, github: GitHub, capsys: pytest.CaptureFixture[str]) -> None:
    on_github.with_name("event.json").write_text('{"after": "abc"}')
    assert main(["gate", "--comment", str(on_github)]) == 0
    assert "not started by a pull request" in capsys.readouterr().err
    assert github.requests == []
    assert main(["gate", "--comment", str(on_github), "--pull-request=7"]) == 0
    assert len(github.comments) == 1


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("GITHUB_TOKEN", "", "no token"),
        ("GITHUB_REPOSITORY", "mine", "'mine' is not a repository"),
        ("GITHUB_API_URL", "http://127.0.0.1:9", "cannot be reached"),
    ],
)
def test_a_wrong_environment_is_named(
    on_github: Path, variable: str, value: str, problem: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(variable, value)
    monkeypatch.delenv("GH_TOKEN", raising=False)
    assert main(["gate", "--comment", str(on_github)]) == 2
    assert problem in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", "--comment", str(tmp_path / "none.md")]) == 2
    assert "none.md: cannot be read" in capsys.readouterr().err


def test_the_workflow_in_the_docs_uses_inputs_that_exist() -> None:
    found = [yaml.safe_load(block.text) for block in blocks(DOCS / "gate.md") if block.language == "yaml"]
    steps = [step for flow in found for job in flow.get("jobs", {}).values() for step in job["steps"]]
    used = [step for step in steps if step.get("uses", "").startswith("lightning-perf/lightning_perf@")]
    assert used
    for step in used:
        assert set(step["with"]) <= set(ACTION["inputs"])
        assert "command" in step["with"]
