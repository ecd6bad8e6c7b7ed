"""The GitHub Action, ``action.yml``: its steps run one by one, as a runner would, against a stand-in for GitHub.

The expressions in it are few, and each is evaluated here as GitHub documents it.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_perf.cli import main
from tests.compare.planted_slowdown import git, make_repository
from tests.support.markdown import DOCS, ROOT, blocks

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
BASE = "${{ github.event_name == 'pull_request' && format('{0}^1', github.sha) || github.event.before }}"


GH = """#!{python}
import json, os, sys
from pathlib import Path
state = json.loads(Path({state!r}).read_text())
request = json.load(sys.stdin)
query, variables = request["query"].split("(")[0], request["variables"]
state["requests"].append([query, sys.argv[1:], os.environ["GH_TOKEN"]])
comments, code = state["comments"], 0
answer = state["answer"]
if answer is None and query == "query":
    assert (variables["owner"], variables["name"], variables["number"]) == ("me", "mine", 7)
    answer = {{"data": {{"repository": {{"pullRequest": {{"id": "PR", "comments": {{"nodes": comments[-100:]}}}}}}}}}}
elif answer is None and "addComment" in request["query"]:
    assert variables["id"] == "PR"
    comments.append({{"id": f"c{{len(comments)}}", "body": variables["body"], "viewerDidAuthor": True}})
    answer = {{"data": {{"addComment": {{}}}}}}
elif answer is None:
    (comment,) = [comment for comment in comments if comment["id"] == variables["id"]]
    assert comment["viewerDidAuthor"]
    comment["body"] = variables["body"]
    answer = {{"data": {{"updateIssueComment": {{}}}}}}
Path({state!r}).write_text(json.dumps(state))
sys.stdout.write(answer if isinstance(answer, str) else json.dumps(answer))
sys.stderr.write(state["stderr"])
sys.exit(state["code"])
"""


class GitHub:
    """Stands in for ``gh``, GitHub's command line, and the comments of one pull request.

    The real one answered in the same way, against a server of the tests on a socket.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = folder / "state.json"
        self.set(comments=[], requests=[], answer=None, stderr="", code=0)
        script = folder / "gh"
        script.write_text(GH.format(python=sys.executable, state=str(self._state)))
        script.chmod(0o755)

    def set(self, **values: Any) -> None:
        state = json.loads(self._state.read_text()) if self._state.exists() else {}
        self._state.write_text(json.dumps(state | values))

    def __getattr__(self, name: str) -> Any:
        return json.loads(self._state.read_text())[name]


@pytest.fixture
def github(tmp_path: Path) -> GitHub:
    folder = tmp_path / "github"
    folder.mkdir()
    return GitHub(folder)


class Runner:
    """Runs the steps of the action in a shallow clone, as the runner of a pull request does."""

    def __init__(self, folder: Path, branch: str, **inputs: str) -> None:
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
        self.inputs |= {"base": f"{self.sha}^1", "head": self.sha, **inputs}
        self.event = "pull_request"
        self.outputs: dict[str, str] = {}
        self.log = ""
        self._script(
            "python", f'case "$*" in "-m pip"*) echo "$@" > {self.folder}/pip ;; *) exec {sys.executable} "$@" ;; esac'
        )
        self._script("lightning-perf", f'exec {sys.executable} -m lightning_perf "$@"')
        self.environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TMPDIR": str(self.folder / "temp"),
            "GITHUB_ACTION_PATH": str(ROOT),
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
        known |= {"runner.temp": str(self.folder / "temp"), "github.event_name": self.event, **self.outputs}
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


def test_a_slowdown_fails_and_its_repair_passes(repository: Path, tmp_path: Path) -> None:
    options = {"options": "--blocks 3\n--devices cpu\n", "command": "python train.py --noise 0.002"}
    slow = Runner(tmp_path, "slow", **options)
    assert slow.run() == 1, slow.log
    assert (slow.folder / "pip").read_text() == f"-m pip install {ROOT}[compare]\n"
    summary = (slow.folder / "summary.md").read_text()
    assert "**Failed: 1 of 1 gate failed.**" in summary
    assert slow.sha[:12] in summary
    twin = Runner(tmp_path, "twin", **options)
    assert twin.run() == 0, twin.log
    assert "**Passed: the gate passed.**" in (twin.folder / "summary.md").read_text()


@pytest.mark.parametrize(("problem", "words"), [({"setup": "exit 3"}, ""), ({"options": "--no-such-option"}, "code 2")])
def test_a_command_that_fails_replaces_the_earlier_result(
    problem: dict[str, str], words: str, repository: Path, tmp_path: Path
) -> None:
    runner = Runner(tmp_path, "twin", command="python train.py", **problem)
    for name in ("Check that the code gets no token", "Fetch both commits", "Run base and head"):
        assert runner.step(name) == 0
    assert runner.outputs["steps.measure.outputs.exit-code"] == "2"
    (report,) = (runner.folder / "temp").glob("*/gate.md")
    assert "# No result" in report.read_text()
    assert words in report.read_text()
    assert (runner.folder / "summary.md").read_text() == report.read_text()
    assert runner.step("Apply the gate") == 2


def test_code_that_could_read_a_token_is_not_run_or_warned_about(repository: Path, tmp_path: Path) -> None:
    runner = Runner(tmp_path, "twin")
    name = "Check that the code gets no token"
    assert (runner.step(name), runner.log) == (0, "")
    git("-C", str(runner.checkout), "config", "http.https://github.com/.extraheader", "AUTHORIZATION: basic secret")
    assert runner.step(name) == 0
    assert "::warning title=lightning-perf::The code that is measured can read the token of this job." in runner.log
    assert "persist-credentials: false" in runner.log
    assert "secret" not in runner.log
    runner.event = "pull_request_target"
    assert runner.step(name) == 2
    assert "::error" in runner.log
    assert "Use 'on: pull_request'" in runner.log


def test_a_commit_that_is_missing_names_the_option_of_the_checkout(repository: Path, tmp_path: Path) -> None:
    runner = Runner(tmp_path, "twin")
    git("-C", str(runner.checkout), "remote", "set-url", "origin", "file:///nowhere")  # a private repository, no token
    assert runner.step("Fetch both commits") == 2
    assert "Add 'fetch-depth: 2' to actions/checkout" in runner.log


@pytest.mark.parametrize(("allowed", "expected"), [("false", 4), ("true", 0)])
def test_an_inconclusive_gate_may_pass(repository: Path, tmp_path: Path, allowed: str, expected: int) -> None:
    runner = Runner(tmp_path, "twin", **{"allow-inconclusive": allowed})
    runner.outputs["steps.measure.outputs.exit-code"] = "4"
    assert runner.step("Apply the gate") == expected


@pytest.fixture
def on_github(github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a workflow, and a file to comment."""
    (tmp_path / "event.json").write_text('{"pull_request": {"number": 7, "title": "x"}}')
    values = {
        "TOKEN": "secret",
        "REPOSITORY": "me/mine",
        "EVENT_PATH": f"{tmp_path}/event.json",
        "RUN_ID": "9",
        "SERVER_URL": "https://github.test",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    monkeypatch.setenv("PATH", f"{github.folder}:{os.environ['PATH']}")
    file = tmp_path / "report.md"
    file.write_text("# Fine\n")
    return file


def comment(file: Path, *options: str) -> int:
    return main(["gate", "--comment", str(file), *options])


def test_the_comment_is_updated_and_those_of_others_stay(on_github: Path, github: GitHub) -> None:
    marker = "<!-- lightning-perf comment: gate -->\n"
    others = [{"id": f"o{n}", "body": marker + "Not ours", "viewerDidAuthor": False} for n in range(120)]
    github.set(comments=[*others[:110], {"id": "x", "body": "Ours", "viewerDidAuthor": True}, *others[110:]])
    assert comment(on_github) == 0
    on_github.write_text("# Better\n")
    assert comment(on_github) == 0
    assert [each["body"] for each in github.comments if each["viewerDidAuthor"]] == [
        "Ours",
        f"{marker}# Better\n\n[Full report](https://github.test/me/mine/actions/runs/9)\n",
    ]
    assert len(github.comments) == 122
    assert [query for query, _, _ in github.requests] == ["query", "mutation"] * 2
    assert github.requests[0][1:] == [["api", "graphql", "--hostname", "github.test", "--input", "-"], "secret"]


def test_each_key_has_a_comment_of_its_own(on_github: Path, github: GitHub) -> None:
    for key in ("cpu", "gpu", "cpu"):
        assert comment(on_github, f"--key={key}") == 0
    assert [each["body"].splitlines()[0] for each in github.comments] == [
        "<!-- lightning-perf comment: cpu -->",
        "<!-- lightning-perf comment: gpu -->",
    ]


def test_a_long_report_is_cut_for_the_comment(on_github: Path, github: GitHub) -> None:
    on_github.write_text("# Fine\n\n<details><summary>Runs</summary>\n\n" + "- a run\n" * 20_000 + "</details>\n")
    assert comment(on_github) == 0
    body = github.comments[0]["body"]
    assert len(body) < 65_536
    assert "- a run\n</details>\n\nThe rest is too long for a comment.\n\n[Full report](https://" in body


def test_other_events_have_no_comment(on_github: Path, github: GitHub, capsys: pytest.CaptureFixture[str]) -> None:
    on_github.with_name("event.json").write_text('{"after": "abc"}')
    assert comment(on_github) == 0
    assert "not started by a pull request" in capsys.readouterr().err
    assert github.requests == []
    assert comment(on_github, "--pull-request=7") == 0
    assert len(github.comments) == 1


NOT_ALLOWED = {"data": {"repository": None}, "errors": [{"type": "FORBIDDEN", "message": "Resource not accessible"}]}


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ({"answer": NOT_ALLOWED, "code": 1}, 0, "no comment: the token may not comment on me/mine#7 (Resource not acc"),
        (
            {"answer": "", "stderr": "error connecting: secret", "code": 1},
            2,
            "refused the comment (error connecting: ***",
        ),
        (
            {"answer": {"errors": [{"message": "Something went wrong"}]}},
            2,
            "refused the comment (Something went wrong)",
        ),
        ({"answer": "", "code": 3}, 2, "gh ended with exit code 3"),
        ({"answer": "<html>"}, 2, "sent an answer that is not GitHub's"),
        ({"answer": [1]}, 2, "sent an answer that is not GitHub's"),
        ({"answer": {"data": {"repository": {"pullRequest": None}}}}, 2, "sent an answer that is not GitHub's"),
        (
            {"answer": '{"data":' + "[" * 5_000 + "]" * 5_000 + "}"},
            2,
            "sent an answer that is not GitHub's (nested too",
        ),
    ],
)
def test_every_answer_is_a_result_or_a_clear_error(
    state: dict[str, Any], code: int, said: str,
    on_github: Path, github: GitHub, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    github.set(**state)
    assert comment(on_github) == code
    err = capsys.readouterr().err
    assert said in err
    assert "secret" not in err


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("GITHUB_TOKEN", "", "no token"),
        ("GITHUB_TOKEN", "sec\nret", "GITHUB_TOKEN: has a space, a line break or another character"),
        ("GITHUB_TOKEN", "sec ret\n", "GITHUB_TOKEN: has a space, a line break or another character"),
        ("GITHUB_REPOSITORY", "mine", "'mine' is not a repository"),
        ("GITHUB_REPOSITORY", "me/mine/../../x", "is not a repository"),
        ("GITHUB_SERVER_URL", "file:///etc", "'file:///etc' is not a server"),
        ("GITHUB_EVENT_PATH", "/nowhere", "/nowhere: is not an event of GitHub"),
        ("GITHUB_EVENT_PATH", str(DOCS / "gate.md"), "gate.md: is not an event of GitHub"),
        ("PATH", "", "gh: is not installed"),
    ],
)
def test_a_wrong_environment_is_named_without_the_token(
    on_github: Path, variable: str, value: str, problem: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(variable, value)
    monkeypatch.delenv("GH_TOKEN", raising=False)
    assert comment(on_github) == 2
    err = capsys.readouterr().err
    assert problem in err
    assert "ret" not in err.replace("secret", "")


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert comment(tmp_path / "none.md") == 2
    assert "none.md: cannot be read" in capsys.readouterr().err


def test_the_workflow_in_the_docs_keeps_the_token_from_the_code(
    on_github: Path, github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [yaml.safe_load(block.text) for block in blocks(DOCS / "gate.md") if block.language == "yaml"]
    (flow,) = [flow for flow in found if "jobs" in flow]
    gate, told = flow["jobs"]["gate"], flow["jobs"]["comment"]
    assert flow[True] == "pull_request"  # YAML's "on"
    assert flow["permissions"] == {"contents": "read"}
    assert "permissions" not in gate
    (checkout,) = [step for step in gate["steps"] if "checkout" in step.get("uses", "")]
    assert checkout["with"] == {"fetch-depth": 2, "persist-credentials": False}
    (used,) = [step for step in gate["steps"] if "lightning_perf@" in step.get("uses", "")]
    assert "command" in used["with"]
    assert set(used["with"]) <= set(ACTION["inputs"])
    assert not re.search(r"github\.token|secrets\.|GITHUB_TOKEN", json.dumps([gate, ACTION]))
    # The other job has the token, and runs nothing of the pull request.
    assert told["permissions"] == {"pull-requests": "write"}
    assert not any("checkout" in step.get("uses", "") for step in told["steps"])
    install, download, last = told["steps"]
    assert install["run"].startswith("pip install ")
    assert download["with"] == {"name": "lightning-perf-gate", "path": "report"}
    assert last["env"] == {"GITHUB_TOKEN": "${{ github.token }}"}
    (tmp_path / "report").mkdir()
    on_github.rename(tmp_path / "report" / "gate.md")
    words = shlex.split(last["run"])
    assert words[0] == "lightning-perf"
    monkeypatch.chdir(tmp_path)
    assert main(words[1:]) == 0
    assert len(github.comments) == 1


def test_no_workflow_keeps_the_token_in_its_checkout() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        uses = [step for job in jobs for step in job["steps"] if "actions/checkout" in step.get("uses", "")]
        assert uses
        assert all(step["with"]["persist-credentials"] is False for step in uses)
