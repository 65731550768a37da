"""Measures how long an engine takes to start, and to come back from an image that CRIU has made.

    python -m studies.snapshots FOLDER --criu "CRIU" -- SERVER WORDS ...

Root's, beside no other server of that kind. SERVER listens on FOLDER/http.sock. It is started,
asked a fixed question, dumped, restored, and asked again: each start and restore ends with the
first answer. ``--cold`` takes the image out of the page cache before.
"""

import argparse
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from statistics import median

from benchmarks.machine import machine

_PATIENCE_S = 900.0
_QUESTION = {
    "model": "m",
    "prompt": "What is kept comes back:",
    "max_tokens": 12,
    "temperature": 0,
    "seed": 1,
}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Snapshots:
    """One server in one folder, by one CRIU."""

    def __init__(self, folder: Path, criu: str, server: Sequence[str]) -> None:
        self._socket, self._images = folder / "http.sock", folder / "images"
        self._folder, self._criu, self._server = folder, shlex.split(criu), server
        self._pid = 0

    def start_s(self) -> tuple[float, str]:
        """Start the server; seconds to its first answer, and that."""
        self._socket.unlink(missing_ok=True)
        began_s = time.monotonic()
        # A file that grows after the dump would not be the one that CRIU opens again.
        self._pid = subprocess.Popen(
            self._server,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ).pid
        return self._until_answer(began_s)

    def dump_s(self) -> tuple[float, int]:
        """Write the server to the image, which ends it; seconds and bytes."""
        shutil.rmtree(self._images, ignore_errors=True)
        self._images.mkdir()
        began_s = time.monotonic()
        self._run("dump", "--tree", str(self._pid), "--tcp-close", "--file-locks")
        seconds = time.monotonic() - began_s
        # Its first process is this one's child, and keeps its number until it is waited for.
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        return seconds, sum(file.stat().st_size for file in self._images.iterdir())

    def restore_s(self) -> tuple[float, str]:
        """Bring it back from the image; seconds to its first answer, and that."""
        began_s = time.monotonic()
        self._run("restore", "--restore-detached", "--tcp-close", "--file-locks")
        return self._until_answer(began_s)

    def end(self) -> None:
        """Kill what runs of it."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        while Path(f"/proc/{self._pid}").exists():
            time.sleep(0.05)

    def forget(self) -> None:
        """Take the image's files out of the page cache."""
        for path in self._images.iterdir():
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)

    def _run(self, action: str, *words: str) -> None:
        log = self._images / f"{action}.log"
        where = ("--images-dir", str(self._images), "--log-file", log.name, "-v3")
        ran = subprocess.run((*self._criu, action, *where, *words), check=False)
        if ran.returncode:
            said = [line for line in log.read_text().splitlines() if "Error" in line]
            raise SystemExit(f"criu {action}: {said}")

    def _until_answer(self, began_s: float) -> tuple[float, str]:
        while time.monotonic() - began_s < _PATIENCE_S:
            with suppress(OSError, http.client.HTTPException):
                connection = _UnixConnection(self._socket)
                words = json.dumps(_QUESTION)
                headers = {"Content-Type": "application/json", "Connection": "close"}
                connection.request("POST", "/v1/completions", words, headers)
                answer = connection.getresponse()
                said = answer.read()
                if answer.status == HTTPStatus.OK:
                    text = json.loads(said)["choices"][0]["text"]
                    return time.monotonic() - began_s, str(text)
            time.sleep(0.02)
        raise SystemExit(f"no answer in {_PATIENCE_S:.0f} s")


def main(words: Iterable[str]) -> None:
    """Start, dump and restore a server ``--rounds`` times; print each, and medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--criu", default="criu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("server", nargs="+")
    told = parser.parse_args(list(words))
    snapshots = Snapshots(told.folder, told.criu, told.server)
    found: dict[str, list[float]] = {"start": [], "dump": [], "restore": []}
    try:
        for _ in range(told.rounds):
            start_s, first = snapshots.start_s()
            dump_s, size = snapshots.dump_s()
            if told.cold:
                snapshots.forget()
            restore_s, again = snapshots.restore_s()
            if first != again:
                raise SystemExit(f"another answer: {first!r}, then {again!r}")
            snapshots.end()
            for kind, seconds in zip(found, (start_s, dump_s, restore_s), strict=True):
                found[kind].append(seconds)
    finally:
        snapshots.end()
    print(json.dumps(machine()))  # noqa: T201
    for kind, all_s in found.items():
        runs = " ".join(f"{one:.2f}" for one in all_s)
        print(f"{kind:8} {median(all_s):6.2f} s  ({runs})")  # noqa: T201
    print(f"image {size >> 20} MiB; all answers were {first!r}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
