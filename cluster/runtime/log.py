"""Formats the log lines of both programs: ``event key=value ...``."""

import json
import logging
import re
from collections.abc import Mapping

_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@+-]+")


def configure_logging(logger: logging.Logger, level: str) -> None:
    """Log to stderr, from which systemd's journal reads; libraries log warnings and errors only."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logger.setLevel(level)


def event_line(event: str, fields: Mapping[str, object]) -> str:
    """Format an event as one line, whatever its values hold.

    A value with blanks or control characters is quoted as JSON. Sets are written in order, ``-`` if
    empty.
    """
    return " ".join((event, *(f"{key}={_text(value)}" for key, value in fields.items())))


def _text(value: object) -> str:
    if isinstance(value, frozenset | set):
        return ",".join(str(item) for item in sorted(value)) or "-"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
