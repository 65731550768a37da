"""Tests that every command takes an account's name in any case, as sbatch -A does."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from slicewise.launcher.cli.command_table import COMMANDS
from slicewise.launcher.main import loaded

NAMES = {"tenant", "account", "about", "opens", "parent"}
"""Arguments and options that name a tenant, or one of its services."""


def _params(name: str, command: Any) -> Iterator[tuple[str, Any, Any]]:
    context = typer.Context(command, info_name=name)
    for param in command.params:
        if param.name in NAMES:
            yield f"{name} {param.name}", context, param
    for word, child in getattr(command, "commands", {}).items():
        yield from _params(f"{name} {word}", child)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_accounts_are_typed_in_any_case(name: str) -> None:
    for where, context, param in _params(name, loaded(name, COMMANDS[name])):
        value = param.process_value(context, "VISION")
        assert value == "vision", where


def test_these_are_the_commands_that_name_accounts() -> None:
    found = {
        where
        for name in ("tenant-quota", "why", "key", "ledger", "budget", "calendar", "report")
        if name in COMMANDS
        for where, *_ in _params(name, loaded(name, COMMANDS[name]))
    }
    assert {"tenant-quota set tenant", "why about", "key create opens"} <= found
    assert {"ledger statement tenant", "budget set tenant"} <= found
