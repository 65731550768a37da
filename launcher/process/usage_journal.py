"""Keeps what requests used on disk until the daemon has booked it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from slicewise.cluster.rpc.usage_messages import MOST_RECORDS, UsagePostRequest, UsageRecord
from slicewise.launcher.gateway.files import replace_file

DIRECTORY = "usage"
"""Name of the journal's directory in the gateway's."""
_MOST_BATCHES = 2000
"""Batches that wait at most: half a million requests, and about 200 MB."""
_OWN = 0o600
_MEMORY = "heard.json"


@dataclass(frozen=True)
class Batch:
    """Records that wait for the daemon, and the file that has them."""

    file: Path
    request: UsagePostRequest


class UsageJournal:
    """Batches as files, the oldest first; each is there as a whole or not at all.

    What was written survives the end of the launcher, not that of the host: the gateway would have
    to wait for disks. Methods block, and raise OSError.

    Attributes:
        waiting: batches that were not booked yet.
        unkept: requests for which there was no room.
        unreadable: names of files that this version can't read; they stay, for people.
    """

    def __init__(self, gateway_directory: Path) -> None:
        self._directory = gateway_directory / DIRECTORY
        self._directory.mkdir(mode=0o700, exist_ok=True)
        files = sorted(self._directory.glob("[0-9]*.json"))
        self._files = dict.fromkeys(files)
        self._newest = int(files[-1].stem) if files else 0
        self._open: UsagePostRequest | None = None
        self._posted: Path | None = None
        self.unkept = 0
        self.unreadable: tuple[str, ...] = ()

    @property
    def waiting(self) -> int:
        """How many batches wait."""
        return len(self._files)

    def add(self, boot: str, records: Sequence[UsageRecord]) -> None:
        """Write records of a process of the gateway; they join the newest batch while it waits."""
        left = tuple(records)
        while left:
            before = self._room(boot)
            if before is None and len(self._files) >= _MOST_BATCHES:
                self.unkept += len(left)
                return
            taken = MOST_RECORDS - len(before or ())
            if before is None:
                self._newest += 1
            part, left = left[:taken], left[taken:]
            self._open = UsagePostRequest(boot=boot, records=(*(before or ()), *part))
            file = self._file(self._newest)
            replace_file(file, self._open.model_dump_json(exclude_defaults=True), _OWN)
            self._files[file] = None

    def _room(self, boot: str) -> tuple[UsageRecord, ...] | None:
        """Return what the newest batch has, if it waits and takes more."""
        batch, file = self._open, self._file(self._newest)
        waits = file in self._files and file != self._posted
        if batch is None or not waits or batch.boot != boot or len(batch.records) >= MOST_RECORDS:
            return None
        return batch.records

    def _file(self, number: int) -> Path:
        return self._directory / f"{number:012d}.json"

    def oldest(self) -> Batch | None:
        """Return the batch that waits longest; None if none does.

        Nothing joins it before ``booked`` or ``failed``.
        """
        for file in list(self._files):
            self._posted = file
            try:
                return Batch(file, UsagePostRequest.model_validate_json(file.read_bytes()))
            except (ValidationError, FileNotFoundError):
                self._set_aside(file)
        return None

    def requests(self) -> Iterator[UsagePostRequest]:
        """Yield what waits."""
        for file in self._files:
            with suppress(ValidationError, FileNotFoundError):
                yield UsagePostRequest.model_validate_json(file.read_bytes())

    def _set_aside(self, file: Path) -> None:
        """Let others be posted."""
        del self._files[file]
        self.unreadable = (*self.unreadable, file.name)
        with suppress(FileNotFoundError):
            file.rename(file.with_suffix(".unreadable"))

    def split(self, batch: Batch) -> None:
        """Let a batch that was refused whole wait behind the others, in two halves if there is
        room.
        """
        self._posted = self._open = None
        boot, records = batch.request.boot, batch.request.records
        middle = (len(records) + 1) // 2
        if middle < len(records) and len(self._files) < _MOST_BATCHES:
            self._newest += 1
            # A crash in between leaves records twice: each is booked once.
            for file, half in (
                (self._file(self._newest), records[middle:]),
                (batch.file, records[:middle]),
            ):
                request = UsagePostRequest(boot=boot, records=half)
                replace_file(file, request.model_dump_json(exclude_defaults=True), _OWN)
                self._files[file] = None
        del self._files[batch.file]
        self._files[batch.file] = None

    def failed(self) -> None:
        """Let the batch that was posted wait as before."""
        self._posted = None

    def booked(self, batch: Batch) -> None:
        """Forget a batch that the daemon has booked."""
        del self._files[batch.file]
        batch.file.unlink(missing_ok=True)

    def remember(self, memory: Mapping[str, object]) -> None:
        """Write what the next launcher goes on with."""
        replace_file(self._directory / _MEMORY, json.dumps(memory), _OWN)

    def memory(self) -> bytes:
        """Return what ``remember`` has written last; nothing if it has not."""
        with suppress(FileNotFoundError):
            return (self._directory / _MEMORY).read_bytes()
        return b"{}"
