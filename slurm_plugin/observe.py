"""What the daemon reports: one line per event, ``event key=value ...``, never a secret."""

import json
import logging
import re

_LOG = logging.getLogger("slicewise.daemon")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@+-]+")


def configure_logging(level: str) -> None:
    """To stderr, where systemd's journal takes it from; of libraries only what is wrong."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    _LOG.setLevel(level)


def report(event: str, level: int = logging.INFO, **fields: object) -> None:
    """Log an event; a value with blanks or control characters is quoted as JSON does."""
    pairs = (f"{key}={_text(value)}" for key, value in fields.items())
    _LOG.log(level, "%s", " ".join((event, *pairs)))


def report_failure(event: str, error: BaseException, **fields: object) -> None:
    """Log a failure that the daemon lives through."""
    report(event, logging.WARNING, **fields, error=str(error))


def _text(value: object) -> str:
    if isinstance(value, frozenset | set):
        return ",".join(str(item) for item in sorted(value)) or "-"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
