"""Checks that each kind of record that is read is counted from the start."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicewise.cluster.language.slurm.unread import RECORDS, Unread
from slicewise.cluster.slurm.unread_log import UnreadLog

pytestmark = pytest.mark.usefixtures("clock")

ROOT = Path(__file__).parents[4]
READERS = {"Fields", "Unread", "each", "piped"}
"""What takes the kind of a record first."""


def named(source: str) -> Iterator[str]:
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            match call.args:
                case [ast.Constant(value=str(kind)), *_] if call.func.id in READERS:
                    yield kind


def test_the_kinds_of_records_are_those_that_the_code_reads() -> None:
    sources = [one for room in ("cluster", "slurm_plugin") for one in (ROOT / room).rglob("*.py")]
    found = {kind for one in sources for kind in named(one.read_text(encoding="utf-8"))}
    assert found == set(RECORDS)


def test_each_kind_is_counted_from_0() -> None:
    log = UnreadLog(lambda *_, **__: None)
    assert log.counts == dict.fromkeys(RECORDS, 0)
    log(Unread("job", "7", "EndTime", "soon"))
    assert log.counts["job"] == 1
