"""Says which integration test holds which promise.

Tests are read, not imported: what they import is no matter of the documentation.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TESTS = Path(__file__).parents[1] / "tests" / "integration"
_HEAD = """\
# Promises

What Slicewise promises, and the integration test that holds each on real servers. `make test` runs
these; a test says which promise it holds by `@pytest.mark.promise("The promise.")`.
"""


@dataclass(frozen=True, order=True)
class Promise:
    """A promise of the product, and the test that ``make test`` holds it by.

    Attributes:
        module: the test's file below tests/integration.
        line: where the marker stands in it.
    """

    module: str
    line: int
    test: str
    sentence: str


def promises(tests: Path = _TESTS) -> tuple[Promise, ...]:
    """Read the promises that tests are marked with, in the order of the tests.

    Raises ValueError for a marker that is not one literal sentence above a test.
    """
    return tuple(
        sorted(one for module in tests.rglob("test_*.py") for one in _of_module(module, tests))
    )


def page() -> Iterator[str]:
    """The page of the reference."""
    yield _HEAD
    yield "| promise | test in tests/integration |"
    yield "| --- | --- |"
    yield from (f"| {one.sentence} | `{one.module}::{one.test}` |" for one in promises())


def _of_module(module: Path, tests: Path) -> Iterator[Promise]:
    for function in ast.parse(module.read_text(encoding="utf-8")).body:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (part for each in function.decorator_list for part in ast.walk(each)):
            if isinstance(node, ast.Call) and _is_promise(node.func):
                name = str(module.relative_to(tests))
                yield Promise(name, node.lineno, function.name, _sentence(node, name))


def _is_promise(function: ast.expr) -> bool:
    return ast.unparse(function) == "pytest.mark.promise"


def _sentence(marker: ast.Call, module: str) -> str:
    match marker.args:
        case [ast.Constant(value=str(sentence))] if not marker.keywords:
            return sentence
    raise ValueError(f"{module}:{marker.lineno}: a promise is one sentence")
