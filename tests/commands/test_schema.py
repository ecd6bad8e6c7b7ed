"""`--schema`: every command with --json has a schema, and schemas reject wrong documents.

The tests of each command check its real output with `load_document`.
"""

import argparse
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import lightning_perf
from lightning_perf.cli import _parser, main
from lightning_perf.documents import DOCUMENTS, make_schema
from tests.support.schemas import load_document

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
DEMO = Path(lightning_perf.__file__).parent / "demo" / "recordings"


def test_every_command_with_json_has_a_schema() -> None:
    (commands,) = (a for a in _parser("")._actions if isinstance(a, argparse._SubParsersAction))
    with_json = {name for name, parser in commands.choices.items() if "--json" in parser._option_string_actions}
    assert with_json == set(DOCUMENTS)


@pytest.mark.parametrize("command", DOCUMENTS)
def test_a_schema_is_valid_and_versioned(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--schema"])
    assert stopped.value.code == 0
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    for root in schema.get("anyOf", [schema]):
        properties = schema["$defs"][root["$ref"].removeprefix("#/$defs/")]["properties"]
        assert properties["schema_version"]["type"] == "integer"
        assert all(field.get("description") for field in properties.values())
    assert "Attributes:" not in json.dumps(schema)


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "input-bound"], ["explain", "half-loss"]])
def test_explain_prints_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--json"]) == 0
    rules = load_document("explain", capsys.readouterr().out)["rules"]
    if arguments[1:]:
        assert [rule["rule"] for rule in rules] == arguments[1:]
        assert rules[0]["text"].startswith("# ")
    else:
        assert {"input-bound", "half-loss"} <= {rule["rule"] for rule in rules}
        assert all(rule["symptom"] and rule["text"] is None for rule in rules)


def test_the_report_and_the_diff_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(DEMO / "before"), "--json"]) == 0
    assert load_document("analyze", capsys.readouterr().out)["findings"]
    assert main(["diff", str(DEMO / "before"), str(DEMO / "after"), "--json"]) == 0
    assert load_document("diff", capsys.readouterr().out)["headline"]


@pytest.mark.parametrize(
    ("command", "name"),
    [("infer", "inference_cnn"), ("infer", "inference_resnet18"), ("infer", "sweep"), ("tune", "tune")],
)
def test_published_results_follow_the_schemas(command: str, name: str) -> None:
    assert load_document(command, (RESULTS / f"{name}.json").read_text())


def test_a_wrong_document_is_noticed() -> None:
    document = json.loads((RESULTS / "tune.json").read_text())
    del document["baseline_ms"]
    with pytest.raises(AssertionError, match="'baseline_ms' is a required property"):
        load_document("tune", json.dumps(document))
    document["baseline_ms"] = "fast"
    with pytest.raises(AssertionError, match="is not of type 'number'"):
        load_document("tune", json.dumps(document))


def test_a_comparison_cannot_pass_for_a_refusal() -> None:
    assert load_document("compare", json.dumps({"message": "no", "state": "invalid", "schema_version": 1}))
    with pytest.raises(AssertionError, match="does not follow"):
        load_document("compare", json.dumps({"message": "no", "state": "fine", "schema_version": 1}))


def test_schemas_describe_every_field_of_the_roots() -> None:
    report = make_schema("analyze")["$defs"]["PerfReport"]
    assert report["description"] == "The report of one run: verdict, findings, and the analyses of every rank."
    assert report["properties"]["lead"]["description"].startswith("Row in ``ranks`` of the rank")
    assert "Example" not in report["properties"]["fp8"]["description"]
