"""``lightning-perf gate --comment``: keep one comment with a Markdown file on a GitHub pull request.

GitHub's own client, ``gh``, sends the requests. This is a call of its own, in another job than the runs: the code of
the pull request must not see the token.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lightning_perf.arguments import print_progress
from lightning_perf.errors import ExitCode, LocatedError
from lightning_perf.saved_json import decode_json
from lightning_perf.show.terminal_text import safe

TIMEOUT_S = 60
MAX_CHARACTERS = 60_000
"""Length of a comment. GitHub accepts 65,536 characters."""

REFUSED = ("FORBIDDEN", "NOT_FOUND")
"""Errors of a token without the permission. GitHub also says that private repositories do not exist."""

_TOKEN = re.compile(r"[!-~]+")
_HOST = re.compile(r"[\w.-]+(:\d+)?", re.ASCII)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)

_FIND = """query($owner: String!, $name: String!, $number: Int!) {
  repository(owner: $owner, name: $name) {
    pullRequest(number: $number) { id comments(last: 100) { nodes { id body viewerDidAuthor } } }
  }
}"""
_ADD = "mutation($id: ID!, $body: String!) { addComment(input: {subjectId: $id, body: $body}) { __typename } }"
_UPDATE = "mutation($id: ID!, $body: String!) { updateIssueComment(input: {id: $id, body: $body}) { __typename } }"

T = TypeVar("T")


class CommentError(LocatedError):
    """The comment cannot be written."""


class _RefusedError(Exception):
    """The token lacks the permission."""


def comment(options: argparse.Namespace) -> int:
    """Write the file of ``--comment`` into the comment, and return the exit code."""
    try:
        with options.comment.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise CommentError(options.comment, f"cannot be read ({error})", "Give a file with Markdown") from error
    number = options.pull_request or _event_number(os.environ)
    if number is None:
        print_progress("no comment: this workflow was not started by a pull request. Give --pull-request N")
        return ExitCode.SUCCESS
    print_progress(_write_comment(number, _body(text, options.key, os.environ)))
    return ExitCode.SUCCESS


def _write_comment(number: int, body: str) -> str:
    """Add the comment, or update our last one with the same first line, and return a line that reports the result."""
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    if not _REPOSITORY.fullmatch(repository):
        raise CommentError("GITHUB_REPOSITORY", f"{repository!r} is not a repository", "Set it to OWNER/NAME")
    owner, _, name = repository.partition("/")
    marker = body.partition("\n")[0]

    def read(data: Any) -> tuple[str, list[str]]:
        found = data["repository"]["pullRequest"]
        nodes = found["comments"]["nodes"]
        return found["id"], [one["id"] for one in nodes if one["viewerDidAuthor"] and one["body"].startswith(marker)]

    try:
        request, own = _request(read, _FIND, owner=owner, name=name, number=number)
        _request(dict, _UPDATE if own else _ADD, id=own[-1] if own else request, body=body)
    except _RefusedError as error:
        return (
            f"no comment: the token may not comment on {repository}#{number} ({error}). In your own repository, add "
            "'permissions: pull-requests: write' to the job. In a pull request from a fork, GitHub never grants it"
        )
    return f"{'updated' if own else 'wrote'} the comment on {repository}#{number}"


def _request(read: Callable[[Any], T], query: str, **variables: object) -> T:
    """Send a GraphQL request with ``gh``, and read the data of its answer."""
    token = _token(os.environ)
    server = os.environ.get("GITHUB_SERVER_URL") or "https://github.com"
    host = server.removeprefix("https://")
    if not _HOST.fullmatch(host):
        raise CommentError("GITHUB_SERVER_URL", f"{server!r} is not a server", "Set it to e.g. https://github.com")
    secrets = {"GH_TOKEN": token, "GH_ENTERPRISE_TOKEN": token}
    try:
        done = subprocess.run(
            ["gh", "api", "graphql", "--hostname", host, "--input", "-"],
            input=msgspec.json.encode({"query": query, "variables": variables}),
            env={**os.environ, **secrets, "GH_PROMPT_DISABLED": "1", "GH_DEBUG": ""},
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise CommentError("gh", "is not installed", "Install GitHub's command line: https://cli.github.com") from error
    except subprocess.TimeoutExpired as error:
        raise CommentError(host, f"did not answer within {TIMEOUT_S} s", "Try again") from error
    try:
        answer = decode_json(done.stdout or b"{}", dict[str, Any])
        problem = next(iter(answer.get("errors") or ()), None)
        if problem is not None and problem.get("type") in REFUSED:
            raise _RefusedError(safe(problem["message"][:200]))
        if done.returncode or problem is not None:
            said = problem["message"] if problem is not None else done.stderr.decode(errors="replace").strip()
            shown = said.replace(token, "***")[-200:] or f"gh ended with exit code {done.returncode}"
            raise CommentError(host, f"refused the comment ({shown})", "Check the token and the number")
        return read(answer["data"])
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise CommentError(host, f"sent an answer that is not GitHub's ({error})", "Check GITHUB_SERVER_URL") from error


def _body(text: str, key: str, environment: Mapping[str, str]) -> str:
    """Return the comment: a hidden marker, the text, and the link to the run of the workflow."""
    server, repository, run = (environment.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    end = f"\n\n[Full report]({server}/{repository}/actions/runs/{run})" if run else ""
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS].rpartition("\n")[0]
        text += "\n" + "</details>\n" * (text.count("<details>") - text.count("</details>"))
        text += "\nThe rest is too long for a comment."
    return f"<!-- lightning-perf comment: {key} -->\n{text.rstrip()}{end}\n"


def _event_number(environment: Mapping[str, str]) -> int | None:
    """Return the number of the pull request that started this workflow, or None."""
    path = environment.get("GITHUB_EVENT_PATH")
    if not path:
        return None
    try:
        event = decode_json(Path(path).read_bytes(), dict[str, Any])
        return int(event["pull_request"]["number"]) if event.get("pull_request") is not None else None
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise CommentError(path, f"is not an event of GitHub ({error})", "Give --pull-request N") from error


def _token(environment: Mapping[str, str]) -> str:
    name = next((name for name in ("GITHUB_TOKEN", "GH_TOKEN") if environment.get(name)), None)
    if name is None:
        action = "In a workflow, set it in the 'env' of the step: GITHUB_TOKEN: ${{ github.token }}"
        raise CommentError("GITHUB_TOKEN", "no token", action)
    token = environment[name]
    if not _TOKEN.fullmatch(token):
        raise CommentError(name, "has a space, a line break or another character that no token has", "Copy it again")
    return token
