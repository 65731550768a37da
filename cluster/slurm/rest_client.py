"""Access to Slurm through slurmrestd, for jobs: JSON over HTTP, by its socket or with a token.

Everything else, and every call in which slurmrestd fails, goes through the commands.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.slurm.asked import ASKED
from slicewise.cluster.language.slurm.unread import UNREADABLE, LogsEvent, ReportsUnread, refused
from slicewise.cluster.runtime.user_names import user_name
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.preferred import Preferred
from slicewise.cluster.slurm.reader_error import UNFIT_REST_S, ReaderError
from slicewise.cluster.slurm.rest_records import job_view
from slicewise.cluster.slurm.run_command import DEADLINE_S, waiting

_PARSERS: Mapping[tuple[int, ...], str] = {(25, 11): "v0.0.44", (26, 5): "v0.0.44"}
"""Data parser to ask for, by the Slurm with which it was tested. Older ones write other JSON."""
_LONGEST = 120
_MOST_BYTES = 1 << 28
"""Of an answer: 30,000 jobs, far more than it tells of in time."""

_WHOLE_EVERY_S = 60.0
"""Seconds after which all jobs are asked for again, changed or not: slurmctld compares times, and
its clock may have been set back."""
_NOTHING_CHANGED = 0
"""Time of an answer without jobs to a question with ``update_time``."""


@dataclass(frozen=True)
class _Whole:
    """An answer with all jobs.

    Attributes:
        update_s: when slurmctld gave it, by its own clock, as a Unix second.
        read_s: when it was read, by ``time.monotonic``.
    """

    jobs: tuple[JobView, ...]
    update_s: int
    read_s: float


class RestSlurm(CommandSlurm):
    """Asks slurmrestd while it works and fits the running slurmctld, else the commands.

    ``where`` is the absolute path of its socket or https://HOST:PORT; ``token_file`` has its JSON
    web token, which is read for each question: tokens end. ``report`` and ``warn`` log which of
    the two is used.
    """

    def __init__(
        self,
        where: str,
        token_file: Path | None,
        report: LogsEvent,
        warn: LogsEvent,
        told: ReportsUnread,
    ) -> None:
        super().__init__(told)
        self._where = where
        self._token_file = token_file
        self._report = report
        self._parser: str | None = None
        self._last: _Whole | None = None
        self._preferred = Preferred("slurmrestd_failed", warn, self._give_up)

    async def jobs(self) -> tuple[JobView, ...]:
        """Ask for ``/slurm/PARSER/jobs/``, or what has changed since the last answer."""
        by_commands = super().jobs

        async def read() -> tuple[JobView, ...]:
            return await self._typed(await self._read())

        return await self._preferred.ask(read, by_commands)

    async def _give_up(self) -> Mapping[str, object]:
        self._parser = self._last = None
        return {}

    async def _read(self) -> tuple[JobView, ...]:
        if self._parser is None:
            running = await self.version()
            text = ".".join(map(str, running))
            if running[:2] not in _PARSERS:
                raise ReaderError(f"slurmrestd of Slurm {text} is not tested", UNFIT_REST_S)
            self._parser = _PARSERS[running[:2]]
            self._report("slurm_by", implementation="slurmrestd", version=text)
        last = self._last
        if last is not None and time.monotonic() - last.read_s >= _WHOLE_EVERY_S:
            last = None
        since = "" if last is None else f"?update_time={last.update_s}"
        with waiting():
            text = await self._asked(f"/slurm/{self._parser}/jobs/{since}")
        try:
            answer = json.loads(text)
            update_s = int(answer["last_update"]["number"])
            if last is not None and update_s == _NOTHING_CHANGED:
                return last.jobs
            named = cache(user_name)
            jobs = tuple(job_view(job, named, refused) for job in answer["jobs"])
        except (*UNREADABLE, RecursionError) as error:
            raise ReaderError(f"{type(error).__name__}: {error}") from None
        self._last = _Whole(jobs, update_s, time.monotonic())
        return jobs

    async def _asked(self, path: str) -> str:
        """What it answers; text that is no UTF-8, which users can write into jobs, is replaced."""
        is_socket = self._where.startswith("/")
        connector = aiohttp.UnixConnector(self._where) if is_socket else aiohttp.TCPConnector()
        headers = self._headers()
        # As many as squeue makes; slurmrestd's own were not counted.
        ASKED.reads["slurmrestd"] += 2
        address = f"{'http://localhost' if is_socket else self._where.rstrip('/')}{path}"
        try:
            async with (
                asyncio.timeout(DEADLINE_S),
                aiohttp.ClientSession(connector=connector) as session,
                session.get(address, headers=headers) as answer,
            ):
                body = await _read(answer)
        except TimeoutError:
            raise ReaderError(f"no answer within {DEADLINE_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            # aiohttp quotes all that slurmrestd wrote behind an answer that ended.
            words = " ".join(str(error).split())[:_LONGEST]
            raise ReaderError(f"{type(error).__name__}: {words}") from None
        if answer.status != HTTPStatus.OK:
            raise ReaderError(f"it answers {answer.status}: {_why(body)}")
        return body.decode(errors="replace")

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = self._token_file.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            raise ReaderError(f"{type(error).__name__}: {error}") from None
        if not (token.isascii() and token.isprintable()):
            raise ReaderError(f"{self._token_file} holds no token")
        return {"X-SLURM-USER-TOKEN": token.removeprefix("SLURM_JWT=")}


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > _MOST_BYTES:
            raise ReaderError(f"it answers more than {_MOST_BYTES} bytes")
    return bytes(body)


def _why(body: bytes) -> str:
    try:
        errors: list[dict[str, Any]] = json.loads(body)["errors"]
        return "; ".join(str(error.get("description") or error.get("error")) for error in errors)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return body[:_LONGEST].decode(errors="replace")
