"""Looks for words in everything that a sandbox's programs have written."""

import asyncio
import base64
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import psycopg

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.servers import postgres

_NOT_WRITTEN = ("site", "triton", "llamacpp", "bin", "dev", "models")
"""Of a sandbox's directory: programs, devices and models, which nobody writes while it runs."""
_OF_REPLICAS = ("/tmp", "/dev/shm")
"""Where replicas may leave something."""
_BYTE_TOKENS = 3
"""The number of byte 0 among the tokens of the tiny model."""
_BASE64_PHASES = 3
_AT_ONCE = 50
"""Tables of one question to HAProxy."""


def forms(word: str) -> set[str]:
    """How a program may write it: as it is, in hexadecimal, base64, or as the model's tokens."""
    said = word.encode()
    found = {word, said.hex(), ", ".join(str(byte + _BYTE_TOKENS) for byte in said)}
    for before in range(_BASE64_PHASES):
        padded = said[: len(said) - (before + len(said)) % _BASE64_PHASES]
        encoded = base64.b64encode(bytes(before) + padded).decode()
        # The first characters are made of what stands before, too.
        found.add(encoded[4 if before else 0 :])
    return found


class Places:
    """Files of the sandbox, rows of its databases, and what HAProxy and commands show."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def having(self, words: Iterable[str]) -> list[str]:
        """Where any of the words stands, in any form and case."""
        patterns = [form.lower() for word in words for form in forms(word)]
        shown = ((name, text.lower()) for name, text in self._shown())
        named = [name for name, text in shown if any(map(text.__contains__, patterns))]
        return [*self._files("\n".join(patterns)), *named]

    def _files(self, patterns: str) -> list[str]:
        root = self._sandbox.layout.directory
        folders = [path for path in root.iterdir() if path.name not in _NOT_WRITTEN]
        replicas = [
            path
            for folder in map(Path, _OF_REPLICAS)
            for path in folder.iterdir()
            if not root.is_relative_to(path) and _is_of(path, self._uids())
        ]
        command = ["grep", "-rlaiF", "-D", "skip", "-f", "-", "--", *map(str, folders + replicas)]
        environment = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            command, input=patterns, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout.splitlines()

    def _uids(self) -> set[int]:
        return {user.uid for user in self._sandbox.state.users.values()} - {0}

    def _shown(self) -> Iterator[tuple[str, str]]:
        yield from self._databases()
        yield from self._haproxy()
        for words in (
            ("scontrol", "show", "job", "-d"),
            ("sacct", "-aP", "--format=ALL"),
            ("slicewise", "doctor", "--json"),
            ("slicewise", "overview", "--json"),
            ("slicewise", "service", "list", "--json"),
        ):
            ran = self._sandbox.run("root", words, check=False)
            yield " ".join(words), ran.stdout + ran.stderr

    def _databases(self) -> Iterator[tuple[str, str]]:
        url = self._sandbox.layout.database_url(self._sandbox.state.users["slurm"].name)
        with psycopg.connect(url) as connection:
            rows = connection.execute("SELECT datname FROM pg_database WHERE datallowconn")
            names = [str(row[0]) for row in rows]
        for name in names:
            database = url.replace("/slicewise?", f"/{name}?")
            pg_dump = str(postgres.binaries(self._sandbox.state.program) / "pg_dump")
            done = self._sandbox.run("slurm", (pg_dump, database), check=False)
            yield f"pg_dump {name}", done.stdout
            assert done.returncode == 0, done.stderr

    def _haproxy(self) -> Iterator[tuple[str, str]]:
        """What the Runtime API shows of requests: tables, maps, rings, sessions, figures."""
        tables = re.findall(r"^# table: ([^,]+),", self.ask("show table"), re.MULTILINE)
        # HAProxy's list of them ends where one's users no longer fit its buffer.
        maps = sorted(self._sandbox.layout.gateway_directory.glob("*.map"))
        for first in range(0, len(tables), _AT_ONCE):
            asked = (f"show table {name}" for name in tables[first : first + _AT_ONCE])
            yield "show table", self.ask(";".join(asked))
        yield "show map", self.ask(";".join(f"show map {path}" for path in maps))
        rings = re.findall(r"^ *(\w+) *:", self.ask("show events"), re.MULTILINE)
        for word in (
            *(f"events {ring}" for ring in rings),
            "sess all",
            "stat",
            "servers state",
            "errors",
            "info",
        ):
            yield f"show {word}", self.ask(f"show {word}")

    def ask(self, line: str) -> str:
        """What HAProxy answers."""
        return asyncio.run(self._ask(line))

    async def _ask(self, line: str) -> str:
        socket = str(self._sandbox.layout.haproxy_socket)
        reader, writer = await asyncio.open_unix_connection(socket)
        writer.write(f"{line}\n".encode())
        answer = await reader.read()
        writer.close()
        return answer.decode(errors="replace")


def _is_of(path: Path, uids: Collection[int]) -> bool:
    try:
        return path.lstat().st_uid in uids and not path.is_symlink()
    except OSError:
        return False
