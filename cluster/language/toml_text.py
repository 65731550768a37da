"""Reads TOML, with the bounds that its standard has and Python's reader lacks; writes keys."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

_LARGEST = 2**63 - 1
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read_toml(text: str, parse_float: Callable[[str], Any] = float) -> Mapping[str, Any]:
    """Return the tables of TOML text; raises ValueError for anything else.

    Python can't even print a number of thousands of digits, so each message about one would fail.
    """
    try:
        table = tomllib.loads(text, parse_float=parse_float)
        _check(table)
    except RecursionError:
        raise ValueError("tables in tables without end") from None
    return table


def toml_key(name: str) -> str:
    """Write one key, quoted where it must be: ``a.b`` would be a key in a table."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _check(value: object) -> None:
    if isinstance(value, dict):
        for item in value.values():
            _check(item)
    elif isinstance(value, list):
        for item in value:
            _check(item)
    elif isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError("a number of more than 18 digits")
