"""Tests that an option takes one kind of value in every command, and that one act has one verb."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import json_checker

from slicewise.launcher.cli.command_table import COMMANDS
from slicewise.launcher.main import loaded

SYNONYMS = frozenset({"add", "new", "remove", "rm", "revoke", "unset"})
"""Verbs for which the commands say create or delete."""


def commands() -> Iterator[tuple[str, Any]]:
    for name, one in COMMANDS.items():
        yield from json_checker.commands(name, loaded(name, one))


def _takes(option: Any) -> str:
    if option.is_flag:
        return "nothing"
    return "a number" if option.type_descriptor.annotation in {int, float} else "text"


def test_what_an_option_takes_is_the_same_in_every_command():
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path, command in commands():
        for option in command.params:
            if option.param_type_name == "option":
                for spelling in option.opts:
                    found[spelling][_takes(option)].add(path)
    assert found["--timeout"].keys() == {"a number"}
    assert {spelling: dict(takes) for spelling, takes in found.items() if len(takes) > 1} == {}


def test_one_act_has_one_verb():
    verbs = {path.rpartition(" ")[2] for path, _ in commands()}
    assert {"create", "delete"} <= verbs
    assert verbs & SYNONYMS == set()
