"""Compares the events that are logged with the page that lists them."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "log-events.md"
_EVENT = re.compile("[a-z]+(?:_[a-z]+)*")
_LEADING = {
    "report": 0,
    "warn": 0,
    "report_failure": 0,
    "_report": 1,
    "once": 1,
}
"""How many arguments may stand before the event: a level, or a service."""


def events(source: str) -> Iterator[str]:
    """The events that a module names where it logs them."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name in _LEADING:
            yield from _event(call.args[: _LEADING[name] + 1])


def _event(arguments: Sequence[ast.expr]) -> Iterator[str]:
    texts = (one.value for one in arguments if isinstance(one, ast.Constant))
    yield from (text for text in texts if isinstance(text, str) and _EVENT.fullmatch(text))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('report("charged", runs=3)', ["charged"]),
        ('warn("charge_odd", text="some_text")', ["charge_odd"]),
        ('self._reporter.once("", "keys_not_set", "")', ["keys_not_set"]),
        ('self._report(logging.WARNING, "leader_lock_failed")', ["leader_lock_failed"]),
        ('self._report("slurm_by", version="1")', ["slurm_by"]),
        ("report(name)", []),
    ],
)
def test_events_are_found_where_they_are_logged(source: str, found: list[str]) -> None:
    assert list(events(source)) == found


def test_every_event_is_in_the_reference() -> None:
    listed = set(re.findall("`([a-z_]+)`", PAGE.read_text(encoding="utf-8")))
    modules = [
        one
        for room in ("cluster", "launcher", "slurm_plugin")
        for one in (ROOT / room).rglob("*.py")
    ]
    logged = {event for one in modules for event in events(one.read_text(encoding="utf-8"))}
    assert len(logged) > 50
    assert sorted(logged - listed) == []
