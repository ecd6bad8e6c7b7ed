"""Checks the JSON of a command against the schema that its option `--schema` prints."""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from lightning_perf.documents import make_schema

__all__ = ["load_document"]


@cache
def _validator(command: str) -> Draft202012Validator:
    schema = make_schema(command)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def load_document(command: str, text: str) -> Any:
    """The document that a command printed, which has to follow its schema."""
    document = json.loads(text)
    errors = [
        f"{list(each.absolute_path)}: {each.message[:200]}"
        for error in _validator(command).iter_errors(document)
        # Of a command that prints one of several documents, the message alone only quotes this one.
        for each in (error, *(error.context or ()))
    ]
    assert not errors, f"{command} --json does not follow its schema:\n" + "\n".join(errors)
    return document
