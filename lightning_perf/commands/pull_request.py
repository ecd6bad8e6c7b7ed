"""``lightning-perf gate --comment``: keep one comment with a Markdown file on a GitHub pull request.

This is a call of its own, after the runs: the code of the pull request must not see the token.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_perf.arguments import at_least, print_progress
from lightning_perf.errors import LocatedError
from lightning_perf.exit_codes import ExitCode

TOKENS = ("GITHUB_TOKEN", "GH_TOKEN")
TIMEOUT_S = 30
PER_PAGE = 100
MAX_CHARACTERS = 60_000
"""Length of a comment. GitHub accepts 65,536 characters."""

FORBIDDEN = (403, 404)
"""Answers to a token without the permission. GitHub also sends 404, so that it does not reveal private repositories."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class CommentError(LocatedError):
    """The comment cannot be written."""


def add_comment(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comment."""
    group = parser.add_argument_group(
        "comment",
        "Write a file into a comment on the pull request of a GitHub Actions workflow, and exit. The next call updates "
        "the comment. GITHUB_TOKEN or GH_TOKEN has the token, which needs the permission 'pull-requests: write'. "
        "Without that permission and in workflows of other events, gate writes no comment, prints the reason, and "
        "exits with 0.",
    )
    group.add_argument("--comment", type=Path, metavar="FILE", help="run nothing, and write this Markdown as a comment")
    group.add_argument(
        "--key",
        type=_key,
        default="gate",
        metavar="NAME",
        help="identifies the comment. Give each job a key of its own if several comment (default: %(default)s)",
    )
    group.add_argument("--link", metavar="URL", help="address of the full report, linked at the end")
    group.add_argument(
        "--pull-request",
        type=at_least(1),
        metavar="N",
        help="number of the pull request (default: that of the event, from GITHUB_EVENT_PATH)",
    )


def comment(options: argparse.Namespace) -> int:
    """Write the file of ``--comment`` into the comment, and return the exit code."""
    try:
        text = options.comment.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommentError(options.comment, f"cannot be read ({error})", "Give a file with Markdown") from error
    number = options.pull_request or _event_number(os.environ)
    if number is None:
        print_progress("no comment: this workflow was not started by a pull request. Give --pull-request N")
        return ExitCode.SUCCESS
    print_progress(write_comment(_read_server(os.environ), number, _body(text, options.key, options.link)))
    return ExitCode.SUCCESS


@dataclass(frozen=True)
class GitHub:
    """A repository on a GitHub server."""

    api_url: str
    repository: str
    token: str

    def request(self, method: str, path: str, document: object = None) -> Any:
        """Send a request to a path of the repository, and return the decoded answer."""
        url = f"{self.api_url.rstrip('/')}/repos/{self.repository}{path}"
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "User-Agent": "lightning-perf",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        data = None if document is None else json.dumps(document).encode()
        try:
            request = urllib.request.Request(url, data, headers, method=method)
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except (OSError, ValueError) as error:
            raise CommentError(url, f"cannot be reached ({error})", "Check GITHUB_API_URL and the network") from error


def write_comment(server: GitHub, number: int, body: str) -> str:
    """Write the comment, or update the one with the same first line, and return a line that reports the result."""
    try:
        found = _find_comment(server, number, marker=body.partition("\n")[0])
        if found is None:
            written = server.request("POST", f"/issues/{number}/comments", {"body": body})
        else:
            written = server.request("PATCH", f"/issues/comments/{found}", {"body": body})
    except urllib.error.HTTPError as error:
        if error.code in FORBIDDEN:
            return (
                f"no comment: the token may not comment on {server.repository}#{number} ({error.code} {error.reason}). "
                "In your own repository, add 'permissions: pull-requests: write' to the job. In a pull request from a "
                "fork, GitHub never grants it"
            )
        raise CommentError(
            f"{server.repository}#{number}",
            f"GitHub refused the comment ({error.code} {error.reason})",
            "Check the token and the number of the pull request",
        ) from error
    return f"{'updated' if found else 'wrote'} the comment {written.get('html_url', '')}"


def _find_comment(server: GitHub, number: int, *, marker: str) -> int | None:
    page = 1
    while True:
        comments = server.request("GET", f"/issues/{number}/comments?per_page={PER_PAGE}&page={page}")
        for comment in comments:
            if (comment.get("body") or "").startswith(marker):
                return int(comment["id"])
        if len(comments) < PER_PAGE:
            return None
        page += 1


def _body(text: str, key: str, link: str | None) -> str:
    """Return the comment: a hidden marker, the text, and the link."""
    end = f"\n\n[Full report]({link})" if link else ""
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS].rpartition("\n")[0]
        text += "\n" + "</details>\n" * (text.count("<details>") - text.count("</details>"))
        text += "\nThe rest is too long for a comment."
    return f"<!-- lightning-perf comment: {key} -->\n{text.rstrip()}{end}\n"


def _event_number(environment: Mapping[str, str]) -> int | None:
    """Return the number of the pull request that started this workflow, or None."""
    path = environment.get("GITHUB_EVENT_PATH")
    try:
        event = json.loads(Path(path).read_bytes()) if path else {}
        return int(event["pull_request"]["number"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_server(environment: Mapping[str, str]) -> GitHub:
    repository = environment.get("GITHUB_REPOSITORY", "")
    if repository.count("/") != 1:
        raise CommentError("GITHUB_REPOSITORY", f"'{repository}' is not a repository", "Set it to OWNER/NAME")
    token = next((environment[name] for name in TOKENS if environment.get(name)), None)
    if token is None:
        raise CommentError(
            "GITHUB_TOKEN",
            "no token",
            "In a workflow, set it in the 'env' of the step: GITHUB_TOKEN: ${{ github.token }}",
        )
    return GitHub(environment.get("GITHUB_API_URL") or "https://api.github.com", repository, token)


def _key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a key: use letters, digits, dots, dashes and underscores")
    return text
