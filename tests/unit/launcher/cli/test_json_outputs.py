"""Tests the published schemas; each test that makes a command print JSON checks it, too."""

import json

import json_checker
import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.runtime import console
from slicewise.launcher.cli.command_table import COMMANDS
from slicewise.launcher.cli.json_outputs import JSON_VERSION, OUTPUTS, schema_of
from slicewise.launcher.main import app, loaded
from slicewise.slurm_plugin.cli.views.ledger import StatementShown
from slicewise.slurm_plugin.rules.accounting.types import InvoiceLine

KEY = {
    "key_id": "a",
    "tenant": "vision",
    "service": "",
    "name": "ci",
    "expires_s": None,
    "key": "swk_a_b",
    "person": "",
}


def test_every_command_that_prints_json_has_a_schema():
    trees = (json_checker.commands(name, loaded(name, one)) for name, one in COMMANDS.items())
    assert json_checker.with_json(pair for tree in trees for pair in tree) == OUTPUTS.keys()


@pytest.mark.parametrize("command", OUTPUTS)
def test_every_schema_is_one_and_bears_the_version(command: str):
    schema = schema_of(command)
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:slicewise:json:{JSON_VERSION}:{command.replace(' ', '-')}"
    printed = CliRunner().invoke(app, ["schema", *command.split()])
    assert json.loads(printed.stdout) == schema


def test_the_command_lists_them_and_knows_no_others():
    assert CliRunner().invoke(app, ["schema"]).stdout.split("\n") == [*sorted(OUTPUTS), ""]
    failed = CliRunner().invoke(app, ["schema", "sbatch"])
    assert "SW-NAME-UNKNOWN" in str(failed.exception)


@pytest.mark.parametrize(
    ("change", "fault"),
    [({"name": None}, "name"), ({"more": 1}, "more"), ({}, "")],
)
def test_a_document_that_is_otherwise_is_found(change: dict[str, object], fault: str):
    if not fault:
        json_checker.check("key create", KEY)
        return
    with pytest.raises(AssertionError, match=fault):
        json_checker.check("key create", KEY | change)
    with pytest.raises(AssertionError):
        json_checker.check("key create", {"key_id": "a"})


@pytest.mark.parametrize(("by", "key"), [("service", ""), ("user", "ada"), ("day", "2026-01-31")])
def test_a_statement_has_lines_of_one_kind(by: str, key: str):
    line = InvoiceLine("vision", key, 1, 0, *map(MillisliceSeconds, (5, 0, 0, 0, 0, 5)), 0, 0, 0, 0)
    shown = console.plain(StatementShown(now_s=9, by=by, lines=(line,), tenants=()))
    json_checker.check("ledger statement", shown)
    json_checker.check("ledger statement", {**shown, "runs": []})
    with pytest.raises(AssertionError):
        json_checker.check("ledger statement", {**shown, "by": "task"})


def create_key(value: object) -> None:
    """Named and placed like the command's own function."""
    console.print_json(value)


def test_what_tests_make_commands_print_is_checked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(create_key.__globals__, "__name__", "slicewise.launcher.cli.keys")
    with pytest.raises(AssertionError, match="slicewise key create --json"):
        create_key({"key_id": 7})
    create_key(KEY)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("tenant-quota", "apply", "x.toml"), "tenant-quota apply"),
        (("tenant-quota", "calendar", "list"), "tenant-quota calendar list"),
        (("why", "vision"), "why"),
        (("profile", "measure", "bert"), "profile measure"),
        (("repartition", "run", "--dry-run"), "repartition run"),
        (("ledger", "db", "current"), "ledger db current"),
        (("daemon",), None),
    ],
)
def test_words_lead_to_the_command(words: tuple[str, ...], command: str | None):
    assert json_checker.command_of(words) == command
