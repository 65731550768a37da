"""Writes the daemon's log: one line per event, never a secret."""

import logging

from slicewise.cluster.runtime import log
from slicewise.cluster.settings.log import LogSettings

_LOG = logging.getLogger("slicewise.daemon")


def configure_logging(program: str, settings: LogSettings) -> None:
    """Log to stderr as ``settings`` say, in the name of ``program``."""
    log.configure_logging(program, settings.format, settings.level)


def report(event: str, /, **fields: object) -> None:
    """Log an event."""
    log.emit(_LOG, logging.INFO, event, fields)


def warn(event: str, /, **fields: object) -> None:
    """Log an event that an operator should look at."""
    log.emit(_LOG, logging.WARNING, event, fields)


def report_failure(event: str, error: BaseException, /, **fields: object) -> None:
    """Log a failure after which the daemon goes on."""
    warn(event, **fields, error=error)
