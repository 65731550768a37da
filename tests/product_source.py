"""The product's own source as syntax trees, for tests that read it: each module is read once."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def modules(*folders: str) -> list[Path]:
    """All modules in these folders of the project."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a module, the module itself first."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
