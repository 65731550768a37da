"""Saves what the launcher remembers in the background, and reads it for the one that leads next."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.runtime.log import emit
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.launcher.process.store import Store
from slicewise.launcher.rules.turn.clock_step import not_ahead
from slicewise.launcher.rules.turn.curves import KeptCurve
from slicewise.launcher.rules.turn.state import ServiceState, State, after_restart

STATE_BYTES = 256 * 1024
"""Bytes of one service's state at most; a larger one is not saved: it is a fault of the program,
and must not grow."""

_LOG = logging.getLogger("slicewise.launcher")
_STATE = TypeAdapter(ServiceState)
_CURVE = TypeAdapter(KeptCurve)

Row = TypeVar("Row")


class SavedRows(Generic[Row]):
    """Keeps in the store what has changed; a failure is logged once, and the save tried again.

    A launcher without a store forgets everything when it ends.
    """

    def __init__(self, store: Store | None, rows: TypeAdapter[Row]) -> None:
        self._store, self._rows = store, rows
        self._saved: Mapping[str, bytes] = {}
        self._written: Mapping[str, Row] = {}
        self._is_loaded = store is None
        self._failed = False

    @property
    def is_loaded(self) -> bool:
        """Whether the last ``load`` could read the store."""
        return self._is_loaded

    async def load(self) -> Mapping[str, Row]:
        """Return what was saved last; nothing if the database can't be read now."""
        if self._store is None:
            return {}
        self._is_loaded = False
        try:
            saved = await asyncio.to_thread(self._store.load)
        except SlicewiseError as error:
            self._fail("state_not_loaded", error)
            return {}
        self._is_loaded, self._failed = True, False
        self._saved = dict.fromkeys(saved, b"")
        rows = {key: self.read(key, value) for key, value in saved.items()}
        return {key: row for key, row in rows.items() if row is not None}

    async def save(self, state: Mapping[str, Row]) -> None:
        """Save what differs from what was saved last.

        Saves nothing before that was read: a launcher that began without it must not overwrite it
        with the little that it has learnt itself.
        """
        if self._store is None or not self._is_loaded:
            return
        try:
            self._saved = await asyncio.to_thread(self._write, self._store, dict(state))
        except SlicewiseError as error:
            self._fail("state_not_saved", error)
        else:
            self._failed = False

    def _fail(self, event: str, error: SlicewiseError) -> None:
        if not self._failed:
            _warn(event, error=error)
        self._failed = True

    def _write(self, store: Store, state: Mapping[str, Row]) -> Mapping[str, bytes]:
        # Of most services nothing has moved since: the same value has the same line.
        now = {
            key: line
            for key, row in state.items()
            if (line := self._saved.get(key, b"") if self._written.get(key) is row else b"")
            or (line := self._line(key, row))
        }
        changed = {key: line for key, line in now.items() if self._saved.get(key) != line}
        ended = self._saved.keys() - now.keys()
        if changed or ended:
            store.save({key: json.loads(line) for key, line in changed.items()}, ended)
        self._written = state
        return now

    def _line(self, key: str, row: Row) -> bytes:
        line = self._rows.dump_json(row)
        if len(line) <= STATE_BYTES:
            return line
        _warn("state_too_large", service=key, bytes=len(line))
        return b""

    def read(self, key: str, value: object) -> Row | None:
        """Read a row; None, and a warning, if another version wrote it: that is learnt again."""
        try:
            return self._rows.validate_json(json.dumps(value))
        except ValidationError as error:
            _warn("state_unreadable", service=key, problems=error.error_count())
        return None


class SavedState(SavedRows[ServiceState]):
    """What was learnt of each service."""

    def __init__(self, store: Store | None) -> None:
        super().__init__(store, _STATE)

    async def load(self) -> State:
        """Return what was saved last, as ``taken_over`` returns it."""
        return taken_over(await super().load(), wall_s())

    def read(self, key: str, value: object) -> ServiceState | None:
        """Read one state; if only what the autoscaler knows can't be read, the rest counts."""
        service_state = super().read(key, value)
        if service_state is None and isinstance(value, dict) and value.get("memory") is not None:
            return self.read(key, {**value, "memory": None})
        return service_state


def saved_curves(store: Store | None) -> SavedRows[KeptCurve]:
    """What was learnt of replicas."""
    return SavedRows(store, _CURVE)


def taken_over(saved: State, now_s: float) -> State:
    """Return what another launcher has saved as this one begins with it."""
    return {key: after_restart(service) for key, service in not_ahead(saved, now_s).items()}


def _warn(event: str, **fields: object) -> None:
    emit(_LOG, logging.WARNING, event, fields)
