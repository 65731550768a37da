"""Tests that one module alone reads the wall clock, which anybody may set at any moment."""

import ast
from collections.abc import Iterator, Sequence

import pytest
from product_source import ROOT, modules, nodes

THE_ONE = "cluster/runtime/wall_clock.py"
ALONE = "launcher/scripts/weights.py"
"""It travels in batch scripts without the product, and compares the clock with files' times."""
READS = {
    *("time.time", "time.time_ns", "time.ctime", "time.asctime", "time.localtime", "time.gmtime"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
    *("datetime.date.today", "time.CLOCK_REALTIME"),
}
OF_A_TIME = {"time.ctime", "time.localtime", "time.gmtime"}
"""They read the clock only where they are not given a time."""


def reads(module: Sequence[ast.AST]) -> Iterator[int]:
    """Lines in which the wall clock is read, or handed on to be read."""
    names = dict(_imported(module))
    given = {id(one.func) for one in module if isinstance(one, ast.Call) and one.args}
    for node in module:
        if isinstance(node, ast.Attribute | ast.Name):
            found = _name(node, names)
            if found in READS and not (found in OF_A_TIME and id(node) in given):
                yield node.lineno


def _imported(module: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in module:
        if isinstance(node, ast.Import):
            yield from ((one.asname or one.name, one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def _name(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value, names)}.{node.attr}"
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\nx = time.time()", [2]),
        ("from time import time as now\nx = now()", [2]),
        ("import time\ndef a(now_s=time.time): ...", [2]),
        ("import time\nx = time.localtime()\ny = time.localtime(5)", [2]),
        ("from datetime import UTC, datetime\nx = datetime.now(UTC)", [2]),
        ("import datetime\nx = datetime.date.today()", [2]),
        ("import time\nx = time.monotonic() + time.clock_gettime(time.CLOCK_BOOTTIME)", []),
        ("from datetime import datetime\nx = datetime.fromtimestamp(5)", []),
    ],
)
def test_a_reader_is_found(source: str, found: list[int]) -> None:
    assert list(reads(list(ast.walk(ast.parse(source))))) == found


def test_no_other_module_of_the_product_reads_the_wall_clock() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules("cluster", "launcher", "slurm_plugin")
        for line in reads(nodes(path))
    ]
    assert [one.split(":")[0] for one in found] == [THE_ONE, ALONE], found
