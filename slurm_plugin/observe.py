"""What the daemon reports: one line per event, ``event key=value ...``, never a secret."""

import json
import logging
import re
from collections.abc import Mapping

_LOG = logging.getLogger("slicewise.daemon")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@+-]+")


def configure_logging(level: str) -> None:
    """To stderr, where systemd's journal takes it from; of libraries only what is wrong."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    _LOG.setLevel(level)


def report(event: str, /, **fields: object) -> None:
    """Log what happened; a value with blanks or control characters is quoted as JSON does."""
    _LOG.info("%s", _line(event, fields))


def warn(event: str, /, **fields: object) -> None:
    """Log what an operator should look at."""
    _LOG.warning("%s", _line(event, fields))


def report_failure(event: str, error: BaseException, /, **fields: object) -> None:
    """Log a failure that the daemon lives through."""
    warn(event, **fields, error=error)


def _line(event: str, fields: Mapping[str, object]) -> str:
    return " ".join((event, *(f"{key}={_text(value)}" for key, value in fields.items())))


def _text(value: object) -> str:
    if isinstance(value, frozenset | set):
        return ",".join(str(item) for item in sorted(value)) or "-"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
