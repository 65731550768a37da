"""How both programs write their log lines: ``event key=value ...``."""

import json
import logging
import re
from collections.abc import Mapping

_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@+-]+")


def configure_logging(logger: logging.Logger, level: str) -> None:
    """To stderr, where systemd's journal takes it from; of libraries only what is wrong."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logger.setLevel(level)


def event_line(event: str, fields: Mapping[str, object]) -> str:
    """One line, whatever the values hold: one with blanks or control characters is quoted as JSON.

    Sets are written in order, ``-`` if empty.
    """
    return " ".join((event, *(f"{key}={_text(value)}" for key, value in fields.items())))


def _text(value: object) -> str:
    if isinstance(value, frozenset | set):
        return ",".join(str(item) for item in sorted(value)) or "-"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
