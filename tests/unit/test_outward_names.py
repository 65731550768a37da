"""Tests that names which programs read keep to the glossary: wire, JSON, metrics, ledger."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import slicewise.cluster.rpc
import slicewise.slurm_plugin.ledger
from slicewise.cluster.rpc.message import Message, requests
from slicewise.cluster.runtime.metric_catalogue import LABELS
from slicewise.launcher.cli.json_outputs import OUTPUTS, schema_of
from slicewise.launcher.process.metric_catalogue import METRICS as OF_LAUNCHER
from slicewise.slurm_plugin.daemon.metric_catalogue import METRICS as OF_DAEMON
from slicewise.slurm_plugin.ledger.tables import metadata

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
DROPPED = {
    "began": "started",
    "begun": "started",
    "ceiling": "limit",
    "ceilings": "limits",
    "doubted": "suspect",
    "lane": "qos",
    "leave": "evict",
    "leaves": "ends",
    "news": "reports",
    "recut": "repartition",
    "recuts": "repartitions",
    "wish": "desired",
    "wishes": "desired",
}
"""Words that stood for something with another name already, and that name."""


def _import_all(package: object) -> None:
    for module in pkgutil.iter_modules(package.__path__):  # type: ignore[attr-defined]
        importlib.import_module(f"{package.__name__}.{module.name}")  # type: ignore[attr-defined]


def _subclasses(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in base.__subclasses__():
        yield one
        yield from _subclasses(one)


def wire() -> Iterator[str]:
    """Paths, messages and their fields."""
    _import_all(slicewise.cluster.rpc)
    yield from (request.path for request in requests())
    for message in _subclasses(Message):
        yield re.sub(r"(?<!^)(?=[A-Z])", "_", message.__name__)
        yield from message.model_fields


def json_keys() -> Iterator[str]:
    """The keys of what commands print, at any depth, and the words of their enumerations."""
    parts: list[Any] = [schema_of(name) for name in OUTPUTS]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            properties = part.get("properties")
            yield from properties if isinstance(properties, dict) else ()
            yield from (word for word in part.get("enum", ()) if isinstance(word, str))
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)


def metrics() -> Iterator[str]:
    """Metrics and their labels."""
    yield from (*OF_DAEMON, *OF_LAUNCHER, *LABELS)


def ledger() -> Iterator[str]:
    """Tables with their columns."""
    _import_all(slicewise.slurm_plugin.ledger)
    for table in metadata.tables.values():
        yield table.name
        yield from table.columns.keys()


def log_events() -> Iterator[str]:
    """The events of the reference, which another test holds against the code."""
    text = (REFERENCE / "log-events.md").read_text(encoding="utf-8")
    for cell in re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE):
        yield from re.findall(r"`(\w+)`", cell)


@pytest.mark.parametrize("kind", [wire, json_keys, metrics, ledger, log_events])
def test_no_name_has_a_word_that_was_dropped(kind) -> None:
    names = set(kind())
    assert len(names) > 40
    found = {
        name: DROPPED[word]
        for name in names
        for word in re.split(r"[^a-z0-9]+", name.lower())
        if word in DROPPED
    }
    assert found == {}, "name it so"


def test_paths_have_hyphens_and_fields_underscores() -> None:
    paths = [request.path for request in requests()]
    assert [path for path in paths if not re.fullmatch(r"/v1/[a-z]+(-[a-z]+)*", path)] == []
    fields = {name for message in _subclasses(Message) for name in message.model_fields}
    assert [
        name for name in sorted(fields) if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", name)
    ] == []


def test_one_amount_has_one_name_in_wire_json_and_metrics() -> None:
    """What a tenant has in millislices is called as the glossary calls it, and nothing else is."""
    glossary = (REFERENCE / "glossary.md").read_text(encoding="utf-8")
    table = glossary.partition("## The amounts of a tenant")[2].partition("\n## ")[0]
    for metric in re.findall(r"`slicewise_tenant_(\w+)_millislices`", table):
        if metric != "highest_limit":
            assert f"| `{metric}` |" in table
            assert f"{metric}_millislices" in {*wire(), *json_keys()}
