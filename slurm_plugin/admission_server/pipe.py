"""Messages between the daemon and its admission worker: pickles, each behind its length."""

import pickle
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from slicewise.cluster.settings.log import LogSettings
from slicewise.slurm_plugin.rules.admission.rules import Mode
from slicewise.slurm_plugin.rules.admission.snapshot import Snapshot

HEAD = struct.Struct(">Q")
"""The length of the pickle that follows."""


@dataclass(frozen=True)
class Setup:
    """The daemon's first message: the socket's path, the mode, who may ask, and how to log.

    Attributes:
        uids: who may ask.
    """

    path: Path
    mode: Mode
    uids: frozenset[int]
    log: LogSettings


@dataclass(frozen=True)
class Entries:
    """Changes of a mapping: new or different entries, and the keys that are gone.

    The worker stands still while it takes a change, so a change of one tenant does not send 10,000.
    """

    new: Mapping[Any, Any]
    gone: frozenset[Any]

    def applied(self, before: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """The mapping after the change."""
        kept = {key: before[key] for key in before.keys() - self.gone} if self.gone else before
        return {**kept, **self.new}


@dataclass(frozen=True)
class Changes:
    """Fields of the snapshot that have changed, and when the look at Slurm began (Unix seconds).

    A mapping is sent as its ``Entries``, except in the first snapshot.
    """

    fields: Mapping[str, Any]
    looked_s: float

    @staticmethod
    def between(before: Snapshot | None, after: Snapshot, looked_s: float) -> "Changes":
        """The changes from ``before`` to ``after``."""
        values = {field.name: getattr(after, field.name) for field in fields(after)}
        if before is not None:
            values = {
                name: _entries(old, new) if isinstance(new, Mapping) else new
                for name, new in values.items()
                if new != (old := getattr(before, name))
            }
        return Changes(values, looked_s)

    def applied(self, before: Snapshot | None) -> Snapshot:
        """The snapshot after the change."""
        if before is None:
            return Snapshot(**self.fields)
        values: dict[str, Any] = {
            name: new.applied(getattr(before, name)) if isinstance(new, Entries) else new
            for name, new in self.fields.items()
        }
        return replace(before, **values)


def _entries(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> Entries:
    new = {key: value for key, value in after.items() if key not in before or before[key] != value}
    return Entries(new, frozenset(before.keys() - after.keys()))


@dataclass(frozen=True)
class Taken:
    """The worker now answers by the last changes; after the first of these the socket is there."""


class GpuVerdict(NamedTuple):
    """What was decided of a submission that asked for GPUs, whatever the mode lets pass.

    Attributes:
        code: why it is or would be refused; "" if it is or would be admitted.
        gpu_type: the types asked for, or given, joined by "+"; "" if none was named.
        is_borrowed: whether its QOS is that of borrowed quota.
        is_qos_moved: whether the job named another QOS.
        is_type_chosen: whether the type was chosen for it.
        cost_millislices: of one task; 0 of a refused one.
    """

    tenant: str
    code: str
    gpu_type: str
    is_borrowed: bool
    is_qos_moved: bool
    is_type_chosen: bool
    cost_millislices: int


class Decided(NamedTuple):
    """A question and its answer, for log, status and metrics.

    Attributes:
        action: the answer's action; "failed" for a line that was no message, or could not be
            answered.
        module, module_mode: version and mode of the slicewise.lua that asked.
        at_s: Unix seconds; ``took_s``: seconds from the line's arrival to the answer's text.
        verdict: None for a job without GPUs, or outside the managed partitions.
        request_id: names the question in the log.
    """

    action: str
    code: str
    message: str
    tag: str
    uid: int
    account: str
    module: str
    module_mode: str
    at_s: float
    took_s: float
    verdict: GpuVerdict | None = None
    request_id: str = ""


@dataclass(frozen=True)
class Decisions:
    """A batch of decisions; ``dropped`` counts those that the daemon was too slow to read."""

    decided: tuple[Decided, ...]
    dropped: int


FromDaemon = Setup | Changes
FromWorker = Taken | Decisions


def framed(message: FromDaemon | FromWorker) -> bytes:
    """The message as bytes to send."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body


def unframed(body: bytes | bytearray) -> Any:
    """The message of these bytes. Both ends are the same program, run by the same user."""
    return pickle.loads(body)  # noqa: S301


class Frames:
    """Assembles messages from bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Add bytes; the messages that are complete now."""
        self._rest += data
        while len(self._rest) >= HEAD.size:
            end = HEAD.size + HEAD.unpack_from(self._rest)[0]
            if len(self._rest) < end:
                return
            body = self._rest[HEAD.size : end]
            del self._rest[:end]
            yield unframed(body)
