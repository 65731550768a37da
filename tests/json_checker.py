"""Checks each document that a command prints with ``--json`` against the published schema.

Stricter than the schema is for readers: a key that it does not have is a fault here.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from slicewise.cluster.runtime import console
from slicewise.launcher.cli.command_table import COMMANDS
from slicewise.launcher.cli.json_outputs import OUTPUTS, schema_of
from slicewise.launcher.main import loaded


def checked_printer() -> Any:
    """What takes the place of ``console.print_document``."""
    printed = console.print_document

    def print_document(value: object, indent: int | None) -> None:
        if command := _command_on_the_stack():
            check(command, json.loads(json.dumps(console.plain(value))))
        printed(value, indent)

    return print_document


def check(command: str, document: object) -> None:
    """Raise AssertionError, with the first faults, unless the command may print this document."""
    faults = [
        f"{one.json_path}: {one.message}" for one in _validator(command).iter_errors(document)
    ]
    assert not faults, f"slicewise {command} --json: {faults[:3]}"


def check_output(words: Sequence[str], stdout: str) -> None:
    """Check what a ``slicewise`` that was run with these words has printed."""
    command = command_of(words)
    if "--json" not in words or command is None or not stdout.strip():
        return
    is_one = "logs" not in words and "--watch" not in words
    for text in (stdout,) if is_one else stdout.splitlines():
        check(command, json.loads(text))


def command_of(words: Sequence[str]) -> str | None:
    """The command of these words as the table of outputs has it; None if it prints no JSON."""
    found = (" ".join(words[:count]) for count in (3, 2, 1))
    return next((one for one in found if one in OUTPUTS), None)


@cache
def _validator(command: str) -> Draft202012Validator:
    return Draft202012Validator(_closed(schema_of(command)))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed(one) for key, one in schema.items()}
    return found | {"additionalProperties": False} if "required" in found else found


def _command_on_the_stack() -> str | None:
    frame: Any = sys._getframe(2)
    functions = _functions()
    while frame is not None:
        found = functions.get((frame.f_globals.get("__name__", ""), frame.f_code.co_name))
        if found is not None:
            return found
        frame = frame.f_back
    return None


@cache
def _functions() -> Mapping[tuple[str, str], str]:
    """The commands that print JSON, by module and name of their functions."""
    every = COMMANDS
    found = (pair for name, one in every.items() for pair in commands(name, loaded(name, one)))
    return {
        (command.callback.__module__, command.callback.__name__): name
        for name, command in found
        if name in OUTPUTS
    }


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The command itself and all below it, by name."""
    yield name, command
    children: Mapping[str, Any] = getattr(command, "commands", {})
    for word, child in children.items():
        yield from commands(f"{name} {word}", child)


def with_json(found: Iterable[tuple[str, Any]]) -> set[str]:
    """The names of those that have the option ``--json``."""
    return {name for name, one in found if any("--json" in param.opts for param in one.params)}
