"""Catches log lines as a program writes them, and reads them back."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slicewise.cluster.runtime.log import LineFormatter, LogFormat

_FIELD = re.compile(r'([a-z_0-9]+)=("(?:[^"\\]|\\.)*"|[^\s"=]*)(?: |$)')


class Lines(logging.Handler):
    """Keeps the lines.

    Attributes:
        texts: as they were written.
    """

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self.setFormatter(LineFormatter("tests", form))
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """The events of that name, or all, whose lines are JSON."""
        found = [json.loads(text) for text in self.texts]
        return [one for one in found if name in {"", one["event"]}]


@contextmanager
def lines(form: LogFormat = "json") -> Iterator[Lines]:
    """What is logged inside."""
    caught, logger = Lines(form), logging.getLogger("slicewise")
    before = logger.level
    logger.addHandler(caught)
    logger.setLevel(logging.INFO)
    try:
        yield caught
    finally:
        logger.removeHandler(caught)
        logger.setLevel(before)


def parse_logfmt(line: str) -> dict[str, str]:
    """The fields of a line, by logfmt's grammar; AssertionError for what is none."""
    found, at = {}, 0
    while at < len(line):
        field = _FIELD.match(line, at)
        assert field is not None, line[at:]
        key, value = field.groups()
        assert key not in found
        found[key] = json.loads(value) if value.startswith('"') else value
        at = field.end()
    return found
