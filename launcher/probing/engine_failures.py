"""Logs that an engine's code has raised where it may not: once for each engine."""

import logging
from traceback import extract_tb

from slicewise.cluster.runtime.log import emit
from slicewise.launcher.rules.engines.engine import Engine

_LOG = logging.getLogger("slicewise.launcher")


class EngineFailures:
    """Which engines have failed so far: a site's own one may have errors that show at run time."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def failed(self, engine: Engine, error: Exception) -> None:
        """Log the first error of an engine, and where it was raised."""
        if engine.title in self._said:
            return
        self._said.add(engine.title)
        last = extract_tb(error.__traceback__)[-1:]
        where = "".join(f" in {frame.name}, {frame.filename}:{frame.lineno}" for frame in last)
        why = f"{type(error).__name__}: {error}{where}"
        emit(_LOG, logging.WARNING, "engine_failed", {"engine": engine.title, "why": why})


ENGINE_FAILURES = EngineFailures()
"""Those of this process."""
