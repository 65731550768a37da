"""Writes the daemon's log: one line per event, never a secret."""

import logging

from cluster.runtime import log

_LOG = logging.getLogger("slicewise.daemon")


def configure_logging(level: str) -> None:
    """Log events of ``level`` and above to stderr."""
    log.configure_logging(_LOG, level)


def report(event: str, /, **fields: object) -> None:
    """Log an event."""
    _LOG.info("%s", log.event_line(event, fields))


def warn(event: str, /, **fields: object) -> None:
    """Log an event that an operator should look at."""
    _LOG.warning("%s", log.event_line(event, fields))


def report_failure(event: str, error: BaseException, /, **fields: object) -> None:
    """Log a failure after which the daemon goes on."""
    warn(event, **fields, error=error)
