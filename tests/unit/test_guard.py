"""Tests the guard of this folder: what it refuses, and what a test may have instead."""

import asyncio
import multiprocessing
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from fault_world.virtual_time import START_S, WorldClock
from guard import GuardError, guarded


def _bind(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "subprocess": (lambda: subprocess.run(("true",), check=True), "starts a program"),
    "multiprocessing": (multiprocessing.Process().start, "starts a process"),
    "fork": (os.fork, "forks"),
    "posix_spawn": (lambda: os.posix_spawn("/bin/true", ["true"], {}), "starts a program"),
    "system": (lambda: os.system("true"), "starts a program"),  # noqa: S605
    "unix": (lambda: _bind(Path("any.sock")), "opens a socket"),
    "tcp": (lambda: socket.create_connection(("127.0.0.1", 9)), "asks for an address"),
    "name": (lambda: socket.getaddrinfo("localhost", 80), "asks for an address"),
    "sleep": (lambda: time.sleep(0.001), "sleeps"),
    "pause": (lambda: asyncio.sleep(0.001), "sleeps"),
    "time": (time.time, r"reads time\.time\(\)"),
    "monotonic": (time.monotonic, r"reads time\.monotonic\(\)"),
    "perf_counter": (time.perf_counter, r"reads time\.perf_counter\(\)"),
    "time_ns": (time.time_ns, r"reads time\.time_ns\(\)"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_belongs_elsewhere_is_refused_with_the_place_where_it_belongs(what: str) -> None:
    call, words = REFUSED[what]
    with guarded(may_read_clock=False) as refused, pytest.raises(GuardError, match=words) as raised:
        call()
    assert "tests/process" in str(raised.value)
    assert refused == [raised.value]


def test_a_refusal_that_the_product_swallows_is_kept() -> None:
    with guarded(may_read_clock=False) as refused, suppress(Exception):
        subprocess.run(("true",), check=True)
    assert len(refused) == 1


def test_a_clock_that_was_asked_for_moves_by_sleep_and_by_the_test(clock: WorldClock) -> None:
    assert time.time() == START_S
    time.sleep(5)
    clock.passed_s += 60
    assert (time.time() - START_S, time.monotonic()) == (65, clock.monotonic_s())


def test_a_socket_that_is_not_there_is_told_as_ever(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as asked, pytest.raises(FileNotFoundError):
        asked.connect(str(tmp_path / "none.sock"))


async def test_servers_and_clients_meet_in_memory(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    async with (
        await asyncio.start_unix_server(serve, tmp_path / "a.sock"),
        await asyncio.start_server(serve, "127.0.0.1", 7443),
    ):
        for opened in (
            asyncio.open_unix_connection(str(tmp_path / "a.sock")),
            asyncio.open_connection("127.0.0.1", 7443),
        ):
            reader, writer = await opened
            writer.write(b"x" * 1_000_000)
            await writer.drain()
            writer.write_eof()
            assert len(await reader.read()) == 1_000_000
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", 7443)


async def test_who_does_not_read_lets_the_other_wait(tmp_path: Path, clock: WorldClock) -> None:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]

    async with await asyncio.start_unix_server(serve, tmp_path / "a.sock"):
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "a.sock"))
        await asyncio.sleep(0.1)
        writer.write(b"x" * 1_000_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 3600)
        writer.transport.abort()
    assert clock.passed_s > 3600


def test_a_thread_has_ended_once_it_is_started() -> None:
    called: list[str] = []
    threading.Thread(target=lambda: called.append(threading.current_thread().name)).start()
    assert called == [threading.current_thread().name]


async def test_a_timeout_of_an_hour_takes_no_time(clock: WorldClock) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()
    assert 3600 <= clock.passed_s < 3601
