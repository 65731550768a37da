"""Compares the events that are logged with the page that lists them."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

import pytest
from product_source import ROOT, modules, nodes

PAGE = ROOT / "docs" / "reference" / "log-events.md"
MODULES = modules("cluster", "launcher", "slurm_plugin")
_EVENT = re.compile("[a-z]+(?:_[a-z]+)*")
_LEADING = {
    "report": 0,
    "report_error": 0,
    "warn": 0,
    "_warn": 0,
    "_fail": 0,
    "_tell": 0,
    "report_failure": 0,
    "_report": 1,
    "once": 1,
    "emit": 2,
}
"""How many arguments may stand before the event: a logger, a level, or a service."""


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Trees take hundreds of megabytes."""
    yield
    nodes.cache_clear()


def events(module: Iterable[ast.AST]) -> Iterator[str]:
    """The events that a module names where it logs them."""
    for call in (node for node in module if isinstance(node, ast.Call)):
        if (name := _name(call)) in _LEADING:
            yield from _event(call.args[: _LEADING[name] + 1])


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _pattern(text: ast.JoinedStr) -> str:
    """What an event is like whose name is put together, such as LOOP_failed."""
    parts = (one.value if isinstance(one, ast.Constant) else None for one in text.values)
    return "".join("[a-z_]+" if part is None else re.escape(str(part)) for part in parts)


def _event(arguments: Sequence[ast.expr]) -> Iterator[str]:
    texts = (one.value for one in arguments if isinstance(one, ast.Constant))
    yield from (text for text in texts if isinstance(text, str) and _EVENT.fullmatch(text))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('report("charged", runs=3)', ["charged"]),
        ('emit(_LOG, logging.WARNING, "engine_failed", {})', ["engine_failed"]),
        ('warn("charge_odd", text="some_text")', ["charge_odd"]),
        ('self._reporter.once("", "keys_not_set", "")', ["keys_not_set"]),
        ('self._report(logging.WARNING, "leader_lock_failed")', ["leader_lock_failed"]),
        ('self._report("slurm_by", version="1")', ["slurm_by"]),
        ("report(name)", []),
    ],
)
def test_events_are_found_where_they_are_logged(source: str, found: list[str]) -> None:
    assert list(events(ast.walk(ast.parse(source)))) == found


def test_every_event_is_in_the_reference() -> None:
    listed = set(re.findall("`([a-z_]+)`", PAGE.read_text(encoding="utf-8")))
    logged = {event for one in MODULES for event in events(nodes(one))}
    assert len(logged) > 50
    assert sorted(logged - listed) == []


def test_every_event_of_the_reference_is_one_that_the_code_names() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    listed = {event for row in rows for event in re.findall("`([a-z_]+)`", row)}
    named = [node for one in MODULES for node in nodes(one)]
    names = {one.value for one in named if isinstance(one, ast.Constant)}
    made = "|".join(
        _pattern(one)
        for call in named
        if isinstance(call, ast.Call)
        for one in call.args
        if isinstance(one, ast.JoinedStr) and _name(call) in _LEADING
    )
    assert len(listed) > 50
    assert sorted(one for one in listed - names if not re.fullmatch(made, one)) == []
