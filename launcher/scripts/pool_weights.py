"""Lets the server of a pool's replica load each model from this node, if a copy is there.

    python3 pool_weights.py PRIVATE ID SOCKET HEALTH_PATH BESIDE CACHE MOST_BYTES REPOSITORY MODEL

PRIVATE/readonly has all that this program trusts: a server in a container can't change it. There
``models`` is the server's repository: a folder for each model in REPOSITORY, with links to what
lies there. While a model is loaded they lead to its copy in CACHE, if there is one that is as the
model is (``weights.py``), else to REPOSITORY. So the server never loads what was not just compared,
whatever becomes of this program. What it has loaded from a copy stays locked as long as it has it
and this program runs: one that begins again knows of MODEL only.

Once the server may start, with its own MODEL, ``weights`` has a line: ``hit SECONDS BYTES HOME
COPY`` or ``source SECONDS BYTES HOME WORD: REASON``. HOME is where the user's copies lie; ``-`` if
nothing can be kept there: then this program ends. The job has copied BESIDE bytes before.

Whoever loads another model connects to ``weights.sock``, is greeted by a line, writes one with
the model and those that the server has, reads ``hit`` or ``source``, and ends the connection when
the load is over. What was loaded from REPOSITORY is copied after that, one model at a time, and no
file is read while one is loaded: no request waits for a copy. How each model came is said in the
job's log.

This file travels inside the batch script and runs on the node, beside ``weights.py``, as the job's
user, with nothing but Python 3.8 and its standard library.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from slicewise.launcher.scripts import weights
else:
    import weights

GREETING = b"weights\n"
_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LOW = ("ionice", "-c", "3", "nice", "-n", "19")
_LINE_BYTES = 1 << 18
_POLL_S = 0.5
_ANSWERS_S = 5.0
_NEW = ".new"


class Links:
    """The server's repository: a folder for each model, with links to what is to be read.

    A link in the place of the folder itself would lead nowhere once the model's owner has removed
    it, and Triton then says of no model whether it is ready.
    """

    def __init__(self, folder: Path, repository: Path) -> None:
        self._folder, self._repository = folder, repository
        folder.mkdir(exist_ok=True)

    def refresh(self, busy: Collection[str]) -> None:
        """Let it have the models that the repository has now; of those in ``busy`` nothing changes.

        Raises OSError if the repository can't be read.
        """
        with os.scandir(self._repository) as entries:
            names = {entry.name for entry in entries if entry.is_dir()}
        for folder in self._folder.iterdir():
            if folder.name not in names and folder.name not in busy:
                self._lead(folder.name, {})
                with suppress(OSError):
                    folder.rmdir()
        for name in names.difference(busy):
            # Also models that nobody loads here: an ensemble's parts are loaded with it.
            if _NAME.fullmatch(name):
                self.lead_home(name)

    def lead_home(self, model: str) -> None:
        """Let a model be read from the repository, if it is there; raises OSError."""
        try:
            self.lead(model, self._repository / model)
        except OSError:
            self._lead(model, {})

    def lead(self, model: str, to: Path) -> None:
        """Let a model be read from the folder ``to``; raises OSError."""
        self._lead(model, {path.name: str(path) for path in to.iterdir()})

    def _lead(self, model: str, targets: dict[str, str]) -> None:
        folder = self._folder / model
        folder.mkdir(exist_ok=True)
        new = self._folder.with_name(_NEW)
        # Without a container the server can put a link to another folder in its place.
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            links = _links_in(opened)
            for name in links.keys() - targets.keys():
                os.unlink(name, dir_fd=opened)
            for name, target in targets.items():
                if links.get(name) != target:
                    with suppress(FileNotFoundError):
                        new.unlink()
                    new.symlink_to(target)
                    # A folder that the server has made there itself stays.
                    with suppress(IsADirectoryError):
                        os.rename(new, name, dst_dir_fd=opened)
        finally:
            os.close(opened)


def _links_in(opened: int) -> dict[str, str]:
    """Return where the links in a folder lead, by name."""
    links = {}
    for name in os.listdir(opened):
        # What is none can't be read as one.
        with suppress(OSError):
            links[name] = os.readlink(name, dir_fd=opened)
    return links


class Gate:
    """Tells another program whether it may go on: its reading end has something to read then.

    Once this program has ended, however it did, that end has no writer: the other one goes on.
    """

    def __init__(self) -> None:
        self.reading_end, self._writing_end = os.pipe()
        self._is_open = False

    def open(self) -> None:
        """Let it go on."""
        if not self._is_open:
            os.write(self._writing_end, b".")
        self._is_open = True

    def close(self) -> None:
        """Let it wait."""
        if self._is_open:
            os.read(self.reading_end, 1)
        self._is_open = False


class LoadSource(NamedTuple):
    """Where a model is read.

    Attributes:
        where: its copy, or why there is none.
        entry: the copy, opened and locked.
        is_lacking: whether a copy could be made.
    """

    size: int
    where: str
    entry: int | None = None
    is_lacking: bool = False

    @property
    def outcome(self) -> str:
        """How the server gets it."""
        return "source" if self.entry is None else "hit"


class PoolWeights:
    """What the server loads, and from where."""

    def __init__(self, words: Sequence[str]) -> None:
        private, self._id, socket, self._health, beside, self._folder, *more = words
        most, repository, self._own = more
        self._most_bytes, self._repository = int(most), repository
        self._server = Path(private, socket)
        self._private = Path(private, "readonly")
        self._links = Links(self._private / "models", Path(repository))
        self._turn, self._idle, self._gate = asyncio.Lock(), asyncio.Event(), Gate()
        self._loading: Counter[str] = Counter()
        self._prepared: set[str] = set()
        """Of those the ones whose links are as the load is to find them."""
        self._files: dict[str, LoadSource] = {}
        """From where models were loaded that the server has, or may have."""
        self._to_copy: asyncio.Queue[str] = asyncio.Queue()
        self._copier: asyncio.subprocess.Process | None = None
        self._beside_bytes = int(beside)
        self._is_ending = False

    async def serve(self) -> None:
        """Serve until killed."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._end)
        started_s = time.monotonic()
        try:
            home = weights.Cache(self._folder, self._most_bytes).path("")
        except (weights.NotCachedError, OSError) as error:
            self._tell(weights.told_line("source", started_s, 0, f"- {self._why(error)}"))
            return
        copying = asyncio.create_task(self._copy_all())
        files = await self._begun(self._own, ())
        where = f"{home} {files.where}"
        self._tell(weights.told_line(files.outcome, started_s, files.size, where))
        path = self._private / "weights.sock"
        with suppress(FileNotFoundError):
            path.unlink()
        async with await asyncio.start_unix_server(self._answer, path, limit=_LINE_BYTES):
            while not await _is_fit(self._server, self._health):  # noqa: ASYNC110 -- no event of ours
                await asyncio.sleep(_POLL_S)
            await self._ended(self._own)
            await copying

    def _why(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return f"failed: {error.filename or self._folder}: {error.strerror}"
        return str(error)

    def _tell(self, line: str) -> None:
        new = self._private / "weights.new"
        new.write_text(line, encoding="utf-8")
        new.replace(self._private / "weights")

    def _end(self) -> None:
        """Copy no more; what the server has stays locked, as it finishes its requests."""
        self._is_ending = True
        if self._copier is not None:
            with suppress(ProcessLookupError):
                self._copier.terminate()
        # Its threads wait there, and it ends after them.
        self._gate.open()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        model = ""
        try:
            writer.write(GREETING)
            names = (await reader.readline()).decode("ascii").split()
            if names and all(map(_NAME.fullmatch, names)):
                model = names[0]
                files = await self._begun(model, names)
                writer.write(f"{files.outcome}\n".encode())
                await reader.read()
        except (OSError, ValueError):
            # It has gone, or was none of ours.
            pass
        finally:
            writer.close()
            if model:
                await self._ended(model)

    async def _begun(self, model: str, kept: Collection[str]) -> LoadSource:
        """Prepare a load; the server has no other models than ``kept``."""
        self._loading[model] += 1
        self._idle.clear()
        if not self._is_ending:
            self._gate.close()
        async with self._turn:
            if model in self._prepared:
                return self._files[model]
            for name in self._files.keys() - {*kept, *self._loading, self._own}:
                self._forget(name)
            busy = self._loading.keys() - {model}
            loop, started_s = asyncio.get_running_loop(), time.monotonic()
            files = await loop.run_in_executor(None, self._prepare, model, busy)
            self._forget(model)
            self._files[model] = files
            self._prepared.add(model)
            self._say(weights.told_line(files.outcome, started_s, files.size, files.where), model)
            return files

    async def _ended(self, model: str) -> None:
        """Take back what was prepared for a load, which has ended."""
        async with self._turn:
            self._loading[model] -= 1
            if self._loading[model]:
                return
            del self._loading[model]
            self._prepared.discard(model)
            with suppress(OSError):
                await asyncio.get_running_loop().run_in_executor(None, self._links.lead_home, model)
            if model in self._files and self._files[model].is_lacking:
                self._to_copy.put_nowait(model)
            if not self._loading:
                self._idle.set()
                self._gate.open()

    def _forget(self, model: str) -> None:
        """Let the copy go that a model was loaded from."""
        files = self._files.pop(model, None)
        if files is not None and files.entry is not None:
            os.close(files.entry)

    def _prepare(self, model: str, busy: Collection[str]) -> LoadSource:
        try:
            self._links.refresh(busy)
            files = self._copy_of(model, weights.Cache(self._folder, self._most_bytes))
            if files.entry is not None:
                self._lead_to_copy(model, files.where, files.entry)
        except (weights.NotCachedError, OSError) as error:
            return LoadSource(0, self._why(error))
        return files

    def _lead_to_copy(self, model: str, copy: str, entry: int) -> None:
        try:
            self._links.lead(model, Path(copy))
        except OSError:
            os.close(entry)
            raise

    def _copy_of(self, model: str, cache: weights.Cache) -> LoadSource:
        wanted = weights.WantedFiles(self._repository, model)
        tree = wanted.look()
        wanted.require_change_times(tree)
        key = wanted.key(tree)
        entry = cache.held(key, tree, waits=False)
        if entry is None:
            why = "later: it is copied once it is loaded"
            return LoadSource(tree.distinct_bytes, why, is_lacking=True)
        return LoadSource(tree.distinct_bytes, str(cache.path(key) / weights.MODELS / model), entry)

    async def _copy_all(self) -> None:
        """Copy the models that were loaded from the repository, one at a time."""
        while True:
            model = await self._to_copy.get()
            await self._idle.wait()
            if not self._is_ending:
                await self._copy(model)

    async def _copy(self, model: str) -> None:
        words = (*_LOW, sys.executable, str(self._private / "weights.py"), self._folder)
        more = (f"--model={model}", f"--beside={self._beside_bytes}", "--pauses")
        self._copier = await asyncio.create_subprocess_exec(
            *words,
            str(self._most_bytes),
            self._repository,
            *more,
            stdin=self._gate.reading_end,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await self._copier.communicate()
        self._copier = None
        if line := output.decode():
            outcome, _, size, _ = line.split(" ", 3)
            self._beside_bytes += int(size) if outcome == "copied" else 0
            self._say(line, model)

    def _say(self, line: str, model: str) -> None:
        """Write a line into the job's log, as its script does."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        sys.stdout.write(f"{now} {self._id} {model}: weights={line}")
        sys.stdout.flush()


async def _is_fit(socket: Path, path: str) -> bool:
    """Whether the server says that it is fit: then it has loaded its own model."""
    with suppress(OSError, asyncio.TimeoutError):
        return await asyncio.wait_for(_status_is_ok(socket, path), _ANSWERS_S)
    return False


async def _status_is_ok(socket: Path, path: str) -> bool:
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    finally:
        writer.close()


async def main(words: Sequence[str]) -> None:
    """Serve until killed."""
    await PoolWeights(words).serve()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
